"""Layer: the base class of built-in layers and of users' own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import InitVar, dataclass
from enum import Enum
from typing import Any, Literal, TypeGuard, TypeVar

import numpy as np

from fcaffe.engines.memory import free_bytes
from fcaffe.errors import LayerError, LayerMemoryError, NetError
from fcaffe.net.blob import MAX_AXES, Blob
from fcaffe.net.context import Context
from fcaffe.net.fillers import fill_blob
from fcaffe.net.noise import Noise
from fcaffe.net.placements import REPLICATE, Placement, Replicate, Shard, differs, replicated
from fcaffe.net.workers import Workers
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb

Result = TypeVar("Result")
Kind = TypeVar("Kind", bound="Layer")
State = dict[str, np.ndarray]  # arrays of the host's memory, of any type, by names of their owner's choice


class Held(Enum):
    """How the workers of a run hold a state, which says what becomes of it on another number of workers."""

    ALIKE = "all have the same"
    STREAMS = "each has some of the streams, which lie along the arrays' axis 1"
    SUM = "each has its own part, and only the sum of all of them counts"
    MEAN = "each has its own, and the model has the mean of all, from which others go on"
    OWN = "each has its own, and no other worker can take it over"


Count = int | tuple[int, int | None]
ALL_BOTTOMS = range(sys.maxsize)


class Half(Enum):
    """Which blobs of a layer may have 16 bits, on an engine that multiplies numbers of 16 bits."""

    NONE = "its bottoms and tops are all float32"
    FIRST = "its first bottom may have 16 bits"
    SAME = "its bottoms and tops all have the same type, 16 bits or float32"
    SAME_IN_XP = "as SAME on an array module that computes with 16 bits (CuPy), else float32"
    ANY = "each bottom and top may have either type"


@dataclass(frozen=True)
class Traits:
    """Properties of a layer by which a net checks it, shares memory, and runs it on a device.

    A class states them. `setup` may replace them, depending on the prototxt.
    """

    bottoms: Count = (0, None)  # how many it takes: a number, or a range whose end may be open
    tops: Count = (0, None)
    half: Half = Half.NONE
    reshapes_by_shape: bool = False  # `reshape` does nothing unless a shape has changed
    shapes_by_values: bool = False  # the shapes of its tops, which are small, depend on the values of its bottoms
    repeatable: InitVar[bool] = False  # of earlier versions, without effect: see `Node.is_repeatable`
    labels: Collection[int] = ()  # indices of bottoms whose gradient makes no sense, such as labels and indices
    constants: Collection[int] = ()  # indices of bottoms whose gradient is 0: tops do not depend on their values
    reads: Literal["neither", "bottoms", "tops", "both"] = "both"  # the blobs whose data `backward` reads
    reads_before_writing: bool = False  # `backward` reads the data of its bottom before it writes the gradient
    overwrites_gradient: bool = False  # `backward` may write the gradient of bottom 0 over that of top 0, of its shape
    in_place: bool = True  # a top may be one of its bottoms
    copies_bottom: Literal["never", "in place", "always"] = "never"  # when backward needs the bottom of forward
    aliases: bool = False  # the tops are the memory of the bottom, perhaps with another shape
    runs_user_code: bool = False  # user code reads and writes the blobs in the middle of a pass
    reads_host: bool = False  # brings data from the host, so it runs ahead of the work of a device
    needs_host: bool = False  # waits for computed values, so the work of a pass cannot be recorded
    held: Held = Held.OWN  # how several workers that train hold the state


class Layer:
    """One step of a net: reads its bottoms, writes its tops.

    A subclass states its `traits`, above all how many of each it takes, and overrides

    - `setup`: check parameters, make parameter blobs; once;
    - `reshape`: set the shapes of the tops from those of the bottoms; before every forward pass;
    - `forward`: write `top[i].data` in place;
    - `backward`: write `bottom[i].diff` where `propagate_down[i]`, and ADD to `self.blobs[i].diff`, since gradients
      add up over `iter_size` passes and over layers that share parameters;
    - `saved`, if backward reads only some of the bottoms or tops, or own blobs that forward writes.

    `backward` overwrites the whole of each requested `bottom[i].diff`, which may hold garbage. It writes no other
    gradient of a blob. The net writes those of `constants` of the traits, 0, and raises an error for those of `labels`,
    as Caffe does. So `backward` is called only for a gradient that it computes, of a bottom or of a parameter. A layer
    without parameters may ignore `propagate_down` if only one of its bottoms has a gradient.

    A layer with state from pass to pass besides its parameters overrides `state_blobs`, or `state` and
    `restore_state`. `forward` changes a state by `once`. It draws noise by `noise`, and saves it, if
    `Context.may_change`. It writes `blobs` by `mutable_data`, since engines cache what they derive from weights.
    """

    traits: Traits = Traits()
    fork: str | None = None  # the fork of Caffe whose layer this is, a name in fcaffe/proto/forks.py
    automatic_tops = 0  # the net adds tops up to this number that the prototxt leaves out
    may_be_fused = False  # set by a subclass that rules of rewriting may treat as the class that it derives from
    is_split = True  # each worker has a part of its bottoms, or reads a part of a batch: set by `Graph` from placements
    rule: Any = replicated  # see fcaffe.net.placements; called before `setup` where a batch is split
    noise: Noise | None = None  # set by `setup` of a layer that draws noise

    def __init__(self, param: Any, context: Context) -> None:
        self.param: Any = pb.LayerParameter()
        self.param.CopyFrom(param)
        self.name: str = param.name
        self.type: str = param.type
        self.phase: int = param.phase
        self.key: str = param.name  # unique in the net, while names may repeat; set by `Graph`
        self.bottom_names: list[str] = list(param.bottom)  # the user's names, not those of the tops of a Split
        self.context = context
        self.engine = context.engine
        self.xp = context.engine.xp
        self.blobs: list[Blob] = []
        self.loss_weights: list[float] = []
        self.param_propagate_down: list[bool] = []

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        pass

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom:
            raise NotImplementedError

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        raise NotImplementedError

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if any(propagate_down):
            raise NotImplementedError

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Whether `force_backward` asks for the gradient of this bottom."""
        return bottom_index not in self.traits.labels and bottom_index not in self.traits.constants

    @property
    def ignores_propagate_down(self) -> bool:
        """Whether backward, as in Caffe, also writes gradients of bottoms that were not requested."""
        return False

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        """The blobs whose `data` backward reads: bottoms, tops, and own ones that each forward pass writes anew."""
        reads = self.traits.reads
        return [*(bottom if reads in ("bottoms", "both") else []), *(top if reads in ("tops", "both") else [])]

    def macs(self, bottom: list[Blob], top: list[Blob]) -> int:
        """Multiply-adds of the products of one forward pass."""
        return 0

    @classmethod
    def follows_batches(cls, param: Any) -> bool:
        """Whether one worker must run a whole test, in order: a layer with these parameters carries something from
        batch to batch, draws from the run's stream or writes a file."""
        return cls.write is not Layer.write

    @property
    def running_statistics(self) -> list[Blob]:
        """Those of `blobs` that forward updates: they get no gradient, and the workers may have different ones."""
        return []

    @property
    def held(self) -> Held:
        """How several workers that train hold the state."""
        return self.traits.held if self.is_split else Held.ALIKE

    def state_blobs(self) -> dict[str, Blob]:
        """Blobs of float32 values that later passes depend on, by their names in a state."""
        return {}

    def in_own_order(self, stored: list[StoredBlob]) -> list[StoredBlob]:
        """The blobs that a model has for this layer, in the order of `blobs`."""
        return stored

    def state(self) -> State:
        """Copies of everything that later passes depend on; empty if there is nothing."""
        return {name: np.array(self.engine.to_numpy(blob.data)) for name, blob in self.state_blobs().items()}

    def restore_state(self, state: State) -> None:
        """Continue from the `state` of a net like this one. Raises an FcaffeError first if it does not fit."""
        blobs = self.state_blobs()
        for name, blob in blobs.items():
            array = state.get(name)
            if array is None or array.shape != blob.shape:
                found = "missing" if array is None else f"of shape {array.shape}"
                raise self.error(f"its state should have the shape {blob.shape}, and in the snapshot it is {found}")
        for name, blob in blobs.items():
            blob.mutable_data[...] = self.engine.from_numpy(np.asarray(state[name], np.float32))

    def close(self) -> None:
        """Give back threads and files."""

    def initialize(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Check the number of blobs, set up, give the tops their shapes and loss weights."""
        self.check_count(len(bottom), self.traits.bottoms, "bottom", "input")
        self.check_count(len(top), self.traits.tops, "top", "output")
        if not self.traits.in_place and any(blob in bottom for blob in top):
            raise self.error("does not work in place; give its tops other names")
        shapes = [blob.shape for blob in bottom]
        self.doing(self.setup, bottom, top)
        self.param_propagate_down = [True] * len(self.blobs)
        self.doing(self.reshape, bottom, top)
        for index, (blob, shape) in enumerate(zip(bottom, shapes, strict=True)):
            if blob.shape != shape:  # it is a top as well; each pass would change it again
                raise self.error(
                    f"does not work in place, for it makes {blob.shape} of {self.bottom_name(index)} {shape}; "
                    "give its top another name"
                )
        weights = list(self.param.loss_weight) or [0.0] * len(top)
        if len(weights) != len(top):
            raise self.error(
                f"loss_weight must be given once per top or not at all: {len(weights)} weight(s) for {len(top)} top(s)"
            )
        self.loss_weights = weights

    def doing(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call a method of this layer, as all code that runs layers does.

        An error gets the layer's name. Python's errors in the code of a plugin keep their type.
        """
        try:
            return work(*arguments)
        except LayerError:
            raise
        except (NetError, MemoryError, OverflowError) as problem:
            raise self._named(problem) from problem
        except (ValueError, IndexError, ZeroDivisionError) as problem:
            if not type(self).__module__.startswith("fcaffe."):
                raise
            shapes = ", ".join(str(blob.shape) for blobs in arguments for blob in blobs if isinstance(blob, Blob))
            said = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
            where = f" with blobs of the shapes {shapes}" if shapes else ""
            raise self.error(f"fails{where}: {said}") from problem

    def loss(self, top: list[Blob]) -> float:
        """The weighted sum of those tops that carry a loss, in float32."""
        total = 0.0
        for weight, blob in zip(self.loss_weights, top, strict=False):
            if weight:
                total += float((blob.data * self.xp.float32(weight)).sum(dtype=self.xp.float64))
        return total

    def once(self, change: Callable[[], None], read_now: bool = False) -> None:
        """Change the state: once in a forward pass of Caffe, however many shards the batch has, and not in a second
        computation. `read_now`: the present pass reads the state."""
        if self.context.may_change():
            self.context.workers.once(change, read_now)

    def write_once(self, rows: Any) -> None:
        """Pass an effect of forward on the world, such as lines of a file, to `write`: once, on worker 0. The layer
        needs whole bottoms."""
        if not self.context.may_change():
            return
        workers = self.context.workers
        everyones = workers.gather(rows) if workers.per_worker else [rows]
        if workers.rank == 0 and everyones:
            self.write(everyones)

    def write(self, everyones: list[Any]) -> None:
        """Write rows, in parts in the order of the samples."""
        raise NotImplementedError

    def copy_from_first(self, blob: Blob) -> None:
        """Copy shape and values of worker 0's blob to all workers."""
        workers = self.context.workers
        shape = np.array([len(blob.shape), *blob.shape, *[0] * (MAX_AXES - len(blob.shape))])
        axes, *shape = workers.gather_array(shape)[0].tolist()
        blob.reshape(*shape[:axes])
        blob.data[...] = workers.sum_array(blob.data if workers.rank == 0 else self.xp.zeros_like(blob.data))

    def keeps(self, placement: Placement, like: Blob) -> bool:
        """Whether `rule` leaves a first bottom in this placement, and gives it to the top. All bottoms are taken to
        have the whole shape of the blob `like`."""
        blob = Blob(self.xp, self.context.own_shape(self.context.whole_shape(like), placement))
        blob.placement = placement
        try:
            needed, tops = self.rule([blob] * len(self.param.bottom))
        except NetError:
            return True
        return not (differs(placement, needed[0]) or differs(placement, tops[0]))

    def share_loss_weights(self, top: list[Blob]) -> None:
        """Divide the weights of losses that every worker computes whole: the losses of all workers add up."""
        workers = self.context.workers
        for index, blob in enumerate(top):
            is_whole = isinstance(blob.placement, Replicate)
            if workers.per_worker:  # a loss of user code is the mean over a worker's own batch
                is_whole = self.traits.runs_user_code
            if is_whole:
                self.loss_weights[index] /= workers.size

    def add_blob(
        self, *shape: int, channels_last: bool = False, filler: Any = None, placement: Placement = REPLICATE
    ) -> Blob:
        """Append a parameter of this shape, zeroed or filled; of a Shard only this worker's part."""
        whole = blob = Blob(self.xp, shape, channels_last)
        random = self.context.random
        if isinstance(placement, Shard):
            blob = Blob(self.xp, self.context.own_shape(shape, placement))
            blob.placement = placement
            random.set_state(self.context.as_worker_0(random.state()))  # the parts are of the same values
        self.blobs.append(blob)
        if filler is not None:
            fill_blob(whole, filler, random)
            if whole is not blob:
                blob.data[...] = self.context.part_of(whole.data, placement)
        return blob

    @property
    def layers(self) -> list[Layer]:
        """The layers of the graph whose work this one does: itself, or those that a fused layer replaces."""
        return [self]

    @property
    def workers(self) -> Workers:
        """The workers among which the work of this layer is split; a single one if each does all of it."""
        return self.context.workers if self.is_split else self.context.workers.single

    def over_workers(self, count: float, blob: Blob) -> float:
        """Scale `count`, which is proportional to this worker's samples of the blob, to the whole batch."""
        workers, shard = self.workers, blob.placement
        if workers.size == 1:
            return float(count)
        if isinstance(shard, Shard) and not shard.chosen_by:
            whole = shard.samples * (workers.size if workers.per_worker else 1)
            return count * whole / workers.part(shard.samples).count
        return workers.sum(float(count))

    def refuse_split(self, what: str) -> None:
        """NetError if workers split the batch; `what` says what they cannot split."""
        workers = self.context.workers
        if workers.size > 1 and not workers.per_worker:
            raise self.error(f"{what}, {workers.splitting}")

    def error(self, message: str, kind: type[LayerError] = LayerError) -> LayerError:
        """An exception that names this layer."""
        return kind(f'layer "{self.name}" ({self.type}): {message}')

    def _named(self, problem: Exception) -> LayerError:
        if isinstance(problem, NetError):
            return self.error(str(problem), LayerMemoryError if isinstance(problem, MemoryError) else LayerError)
        said = " ".join(str(problem).split()) or "an allocation failed"
        free = free_bytes()
        rest = "" if free is None else f"; this process can have {free:,} bytes more"
        return self.error(f"its sizes do not fit into memory ({said}{rest}); make them smaller", LayerMemoryError)

    def bottom_name(self, index: int) -> str:
        return f'"{self.bottom_names[index]}"' if index < len(self.bottom_names) else f"bottom {index}"

    def named_shapes(self, bottom: list[Blob]) -> str:
        """For messages: "a" (2, 3) and "b" (2, 4)."""
        return " and ".join(f"{self.bottom_name(index)} {blob.shape}" for index, blob in enumerate(bottom))

    def check_count(self, given: int, allowed: Count, side: str, role: str) -> None:
        low, high = (allowed, allowed) if isinstance(allowed, int) else allowed
        if given >= low and (high is None or given <= high):
            return
        wanted = f"{low}" if low == high else f"at least {low}" if high is None else f"{low} to {high}"
        raise self.error(f"takes {wanted} {side} blob(s) as {role}, not {given}")


def is_layer(layer: Layer, kind: type[Kind]) -> TypeGuard[Kind]:
    """Whether the layer computes what this class computes: it is no subclass, unless that says so itself."""
    return type(layer) is kind or (isinstance(layer, kind) and "may_be_fused" in vars(type(layer)))
