"""Reduction: the contract of all ways to add up gradients, and the registry of their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from fcaffe.engines.memory import aligned_zeros
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.net.blob import Array
from fcaffe.net.layer import State
from fcaffe.parallel.reductions.wire import Wire
from fcaffe.suggestions import did_you_mean
from fcaffe.tree_order import Node, Tree


class Reduction:
    """Adds up one flat float32 buffer over all ranks of a communicator. All its calls are collective.

    A subclass overrides `add_up`. After a sum all ranks hold the same bits. Buffers are arrays of the module `xp`.
    """

    name = ""
    counted = True  # whether `messages` and `bytes_sent` are known
    wraps_another = False  # whether it is created with the name of another
    on_device = False  # whether its buffers are on GPUs, always
    host_waits = True  # whether the host waits for a sum, rather than only enqueue it on a stream of the device
    compression = ""  # the name of the scheme by which it compresses, if it does
    applies_momentum = False  # whether it applies SGD's momentum and clipping itself, as `set_momentum` says

    def __init__(self, comm: MPI.Intracomm, xp: Any = np) -> None:
        self.comm = comm.Dup()  # so that no message of others is taken for one of ours
        self.rank = comm.rank
        self.ranks = comm.size
        self.xp = xp
        self.wire = Wire(self.comm)
        self.parts: list[Reduction] = []  # reductions that send for it, which it closes
        self._scratch: Array = xp.empty(0, np.float32)

    def add_up(self, buffer: Array) -> None:
        """`sum`, for two ranks or more and one float or more."""
        raise NotImplementedError

    def keep_to_tree(self, tree: Tree, nodes: Sequence[list[Node]]) -> None:
        """From now on add up in the order of this tree. Rank r has a sum for each of nodes[r]. Raises UsageError."""
        able = [kind.name for kind in _registry.values() if kind.keep_to_tree is not Reduction.keep_to_tree]
        known = ", ".join(sorted(able))
        raise UsageError(f"reduction {self.name} does not add up in the order of a tree; these do: {known}")

    def sum(self, buffer: Array) -> None:
        """Replace `buffer` (float32, contiguous, as long on every rank) by the sum of all ranks' buffers.

        After `keep_to_tree` it has at least one row per node of this rank, and row 0 receives the sum.
        """
        self.check(buffer)
        if self.ranks > 1 and buffer.size:
            self.add_up(buffer)

    def allocate(self, count: int) -> Array:
        """Return a zeroed buffer that this reduction sums, like each slice of it, without copying it first."""
        return self._zeros(count)

    def mark(self) -> Any:
        """Return a mark of the device's work so far, for `start`; None for buffers in the host's memory."""

    def start(self, buffer: Array, ready: Any = None) -> None:
        """Begin the sum of a buffer that is written when the device reaches the mark `ready`. It ends at `finish`."""
        self.sum(buffer)

    def finish(self) -> None:
        """Let the device's work from now on wait for all sums that were started. The host does not wait."""

    def raise_failed(self) -> None:
        """Raises FcaffeError for a sum that has failed since it was started. Does not wait."""

    def set_momentum(self, momentum: float, clip: float) -> None:
        """Apply this momentum to gradients, and clip them to this L2 norm (negative: do not), before they are added."""
        raise NotImplementedError

    def state(self) -> State:
        """What later sums depend on; see GradientExchange."""
        return {}

    def restore_state(self, state: State) -> None:
        """Continue from what `state` returned."""

    @property
    def messages(self) -> int:
        """Number of messages of this rank so far; one sent and one received at the same time count as one."""
        return self.wire.messages + sum(part.messages for part in self.parts)

    @property
    def bytes_sent(self) -> int:
        return self.wire.bytes_sent + sum(part.bytes_sent for part in self.parts)

    def summary(self) -> str:
        """What has been sent, for the log; empty if that is nothing, or not known."""
        return f"{self.bytes_sent / 1e6:.3f} MB sent by rank {self.rank}" if self.counted and self.bytes_sent else ""

    def close(self) -> None:
        """Free what was allocated, buffers too. Collective."""
        for part in self.parts:
            part.close()
        self.comm.Free()

    def scratch(self, count: int) -> Array:
        """Memory for `count` floats, which the next call reuses."""
        if self._scratch.size < count:
            self._scratch = self._zeros(count)
        return self._scratch[:count]

    def scratch_rows(self, number: int, count: int) -> Array:
        return self.scratch(number * count).reshape(number, count)

    def _zeros(self, count: int) -> Array:
        return aligned_zeros(self.xp, count)

    def check(self, buffer: Array) -> None:
        row = buffer[0] if buffer.ndim == 2 else buffer
        if buffer.dtype != np.float32 or row.ndim != 1 or not row.flags.c_contiguous:
            raise FcaffeError(
                f"reduction {self.name}: the buffer must be flat, contiguous float32, not {buffer.dtype} of shape "
                f"{buffer.shape} with strides {buffer.strides}; sum a flat copy of it"
            )


def rows_of(buffer: Array) -> Array:
    """The buffer with an axis for its rows."""
    return buffer.reshape(1, -1) if buffer.ndim == 1 else buffer


def cut(buffer: Array, parts: int) -> list[Array]:
    """Views of consecutive slices whose lengths differ by one at most."""
    return [buffer[part_of(slice(0, buffer.size), part, parts)] for part in range(parts)]


def part_of(whole: slice, part: int, parts: int) -> slice:
    """One of `parts` consecutive slices of `whole` whose lengths differ by one at most."""
    count = whole.stop - whole.start
    return slice(whole.start + count * part // parts, whole.start + count * (part + 1) // parts)


_registry: dict[str, type[Reduction]] = {}
_Class = TypeVar("_Class", bound=type[Reduction])


def register(name: str) -> Callable[[_Class], _Class]:
    """Class decorator: registers a reduction under the name that `--reduce` takes.

    A class that is `on_device` is created with the module of the buffers' arrays after the communicator.
    """

    def add(reduction: _Class) -> _Class:
        if name in _registry:
            raise FcaffeError(f"there are two reductions of the name '{name}'")
        reduction.name = name
        _registry[name] = reduction
        return reduction

    return add


@register("mpi")
class Mpi(Reduction):
    """MPI_Allreduce, as the MPI library implements it and waits for it. Its messages cannot be counted."""

    counted = False

    def add_up(self, buffer: np.ndarray) -> None:
        self.comm.Allreduce(MPI.IN_PLACE, buffer)


@register("null")
class Null(Reduction):
    """No communication: each rank has its own gradients. For measuring the rest of a training."""

    def add_up(self, buffer: np.ndarray) -> None:
        pass


def reduction_names() -> list[str]:
    return sorted(_registry)


def reduction_class(name: str) -> type[Reduction]:
    """Raises UsageError for an unknown name."""
    if name not in _registry:
        hint = did_you_mean(name, _registry)
        raise UsageError(f"there is no reduction '{name}'{hint}; known are {', '.join(reduction_names())}")
    return _registry[name]


def parse_name(name: str) -> tuple[type[Reduction], list[str]]:
    """The class of `hierarchical:ring`, and what it is created with besides: ["ring"]. Raises UsageError."""
    kind, colon, another = name.partition(":")
    reduction = reduction_class(kind)
    if colon and not reduction.wraps_another:
        raise UsageError(f"reduction {name}: {kind} takes no other reduction; hierarchical does")
    if colon:
        reduction_class(another.partition(":")[0])
    return reduction, [another] if colon else []


def create_on_host(name: str, comm: MPI.Intracomm) -> Reduction:
    """The reduction of this name between the ranks of `comm`, with messages and barriers of the host. Collective.

    `hierarchical:ring` is `hierarchical` with `ring` between hosts. Raises UsageError.
    """
    reduction, another = parse_name(name)
    if reduction.on_device:
        raise UsageError(
            f"reduction {name} sums buffers of GPUs, and these are in the memory of the CPU: use shared, ring or auto"
        )
    create: Callable[..., Reduction] = reduction
    return create(comm, *another)
