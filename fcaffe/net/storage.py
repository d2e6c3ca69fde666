"""Storage: the memory behind the data or the gradient of one or several blobs.

A storage is an object of its own so that blobs can share it (Split, shared parameters), the arena and flat buffers can
provide its buffer, and gradients can be cleared without being written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy

from fcaffe.engines.memory import Array, address, aligned_zeros, foreign, logical_view
from fcaffe.errors import OutOfMemoryError

CHANNELS_LAST_AXES = (4, 5)
MOST_VIEWS = 8  # shapes whose views are cached


class Storage:
    """A flat buffer of `size` values, allocated at the first access, and the memory order of the blobs' axes in it.

    The blobs that share one may have different shapes.
    """

    def __init__(self, xp: Any, channels_last: bool, size: int, dtype: Any = numpy.float32) -> None:
        self.xp = xp
        self.channels_last = channels_last
        self.size = size
        self.dtype = numpy.dtype(dtype)
        self.buffer: Array = None
        self.has_moved = False  # into a flat buffer of parameters, whose order is fixed
        self.is_clear = False  # its values count as zeros, whatever is in the buffer
        self.compute: Callable[[Storage], None] | None = None  # computes values that a pass has not materialised
        self.exposure: Any = None  # the state of `fcaffe.net.host_arrays` for it
        self._views: dict[tuple[int, ...], Array] = {}
        self._foreign: Any = None  # the buffer, for `window`

    def view(self, shape: tuple[int, ...]) -> Array:
        if self.is_clear:
            self.settle()
        if self.compute is not None:
            self.compute(self)
        found = self._views.get(shape)
        return self._new_view(shape) if found is None else found

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def like(self, size: int) -> Storage:
        """A storage of the same kind with room for this many values."""
        return Storage(self.xp, self.channels_last, size, self.dtype)

    def logical(self, flat: Array, shape: tuple[int, ...]) -> Array:
        """A view of a flat array in the order of this storage, with a blob's shape."""
        return logical_view(flat, shape, self.channels_last and len(shape) in CHANNELS_LAST_AXES)

    def replace(self, buffer: Array) -> None:
        """Use another buffer from now on. None: allocate one at the next access."""
        self.buffer, self._foreign = buffer, None
        self._views.clear()

    def window(self) -> numpy.ndarray:
        """A new array of the whole buffer, which must be allocated, in host memory; see `foreign`."""
        if self._foreign is None:
            self._foreign = foreign(self.buffer)
        return numpy.ndarray(self.buffer.shape, self.buffer.dtype, self._foreign)

    def _new_view(self, shape: tuple[int, ...]) -> Array:
        if self.buffer is None:
            self.buffer = self._new_buffer(shape)
        view = self.logical(self.buffer[: math.prod(shape)], shape)
        if len(self._views) >= MOST_VIEWS:
            self._views.clear()
        self._views[shape] = view
        return view

    def _new_buffer(self, shape: tuple[int, ...]) -> Array:
        """Zeros. The shape is for the error message."""
        try:
            return aligned_zeros(self.xp, self.size, self.dtype)
        except MemoryError as problem:
            raise OutOfMemoryError(f"there is no memory for a blob of shape {shape}: {problem}") from problem

    @property
    def address(self) -> int:
        """The address of the buffer, which must be allocated, in host memory."""
        return address(self.buffer)

    def clear(self) -> None:
        """Let the values count as zeros without writing any. Until `settle` writes them, or the caller has overwritten
        all of them and called `mark_written`, only `view` may read the buffer."""
        self.is_clear = self.buffer is not None  # a new buffer is zero

    def mark_written(self) -> None:
        """The values in the buffer count again."""
        self.is_clear = False

    def settle(self) -> None:
        """Write the zeros if the values count as such; see `clear`."""
        if self.is_clear:
            self.is_clear = False
            self.write_zeros()

    def write_zeros(self) -> None:
        """Fill the buffer, which must be allocated, whatever its dtype."""
        self.buffer.view("uint8")[...] = 0

    def make_contiguous(self, shape: tuple[int, ...]) -> None:
        """Switch to C order permanently. Preserves the values of a blob of this shape."""
        if not self.channels_last or self.has_moved:
            return
        values = (
            None if self.buffer is None or self.view(shape).flags.c_contiguous else self.view(shape).copy(order="C")
        )
        self.channels_last = False
        self._views.clear()
        if values is not None:
            self.view(shape)[...] = values
