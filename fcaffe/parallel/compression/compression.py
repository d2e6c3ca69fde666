"""Compression: the base of all schemes that send fewer bytes than float32 takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from fcaffe.engines.memory import address
from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.blob import Array
from fcaffe.net.layer import State
from fcaffe.parallel.reductions.gpu.staged import Staged
from fcaffe.parallel.reductions.reduction import Reduction


class Compression(Reduction):
    """A reduction whose workers send approximations of their gradients, in fewer bytes than float32 takes.

    A worker keeps the error of its approximation in its `residual`, and adds it to its next gradients (error
    feedback): nothing is lost, it comes later. The residual is indexed like the gradients. So `sum` takes slices of
    the buffer that `allocate` returned, and all ranks cut this buffer alike in every iteration. Afterwards a slice
    holds the sum of what the ranks sent, added in the order of ranks: the same bits on each rank. A single rank
    compresses too, though it sends to nobody.

    Values that are not finite are sent once, and their residual is reset to zero. So they reach the weights of all
    workers as they do without compression, and `--on-nan` decides what follows.

    Every rank sends to every other; `bytes_sent` counts each message. Residuals go into snapshots (`state`).
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self.compression = self.name
        self._plain_bytes = 0.0

    def allocate(self, count: int) -> np.ndarray:
        """Return a zeroed buffer for all gradients; allocates a zeroed residual too. Replaces earlier ones."""
        self._gradients = super().allocate(count)
        self.residual = super().allocate(count)
        return self._gradients

    def use(self, gradients: np.ndarray) -> None:
        """Sum slices of this buffer instead of the one that `allocate` returned, which has the same length."""
        self._gradients = gradients

    def state(self) -> State:
        """What this worker has not sent yet."""
        return {"residual": self.residual}

    def restore_state(self, state: State) -> None:
        self.residual[...] = state["residual"]

    @silent_arithmetic
    def sum(self, buffer: np.ndarray) -> None:
        """Replace a slice of the allocated buffer by the sum over all ranks of what each has sent for it."""
        self.check(buffer)
        if buffer.size:
            self.add_up(buffer)
        self._plain_bytes += 2 * (self.ranks - 1) / self.ranks * buffer.nbytes

    @property
    def ratio(self) -> float:
        """How many times fewer bytes have been sent than a ring sends in float32; 1 where nothing is sent."""
        return self._plain_bytes / self.bytes_sent if self.bytes_sent else 1.0

    def summary(self) -> str:
        """For the log."""
        sent = f"{self.bytes_sent / 1e6:.3f} MB sent by rank {self.rank}"
        return f"{self.name}: {sent}, {self.ratio:.4g} times less than a ring sends in float32"

    def gather(self, words: np.ndarray) -> np.ndarray:
        """The words of all ranks, as rows. All ranks give the same number."""
        everyones = np.empty((self.ranks, words.size), words.dtype)
        self.exchange([words] * self.ranks, list(everyones))
        return everyones

    def exchange(self, outgoing: Sequence[np.ndarray], incoming: Sequence[np.ndarray]) -> None:
        """Send outgoing[r] to every rank r and receive its incoming[r]; the rank's own one is copied."""
        incoming[self.rank][...] = outgoing[self.rank]
        self.wire.exchange_all([one.view(np.uint8) for one in outgoing], [one.view(np.uint8) for one in incoming])

    def slice_of(self, buffer: np.ndarray) -> slice:
        """The slice of the allocated buffer that `buffer` is. Raises ValueError if it is none."""
        start, odd = divmod(address(buffer) - address(self._gradients), buffer.itemsize)
        if odd or not 0 <= start <= self._gradients.size - buffer.size:
            raise ValueError(f"{self.name}: the buffer to sum is no slice of the one that `allocate` gave")
        return slice(start, start + buffer.size)


class OnDevice(Staged):
    """For gradients on GPUs: copies each slice into pinned memory, where a compression of the host sums it, and back.

    Residuals stay in the host's memory.
    """

    def __init__(self, compression: Compression, xp: Any) -> None:
        self._compression = compression
        super().__init__(compression.comm, xp, compression)
        self._gradients: Array = None

    def allocate(self, count: int) -> Array:
        """A buffer of zeros on the device for all gradients; replaces an earlier one."""
        self.stream.synchronize()
        self._compression.allocate(count)
        self._pinned = self.allocate_pinned(count)
        self._compression.use(self._pinned)
        self._gradients = super().allocate(count)
        return self._gradients

    def pinned_for(self, buffer: Array) -> np.ndarray:
        start = (buffer.data.ptr - self._gradients.data.ptr) // 4
        return self._pinned[start : start + buffer.size]


def not_finite(values: np.ndarray) -> np.ndarray:
    """The indices of all inf and NaN. Takes one pass if all values are finite, since then their sum is finite."""
    if np.isfinite(values.sum()):
        return np.empty(0, np.intp)
    return np.flatnonzero(~np.isfinite(values))
