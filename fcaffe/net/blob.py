"""Blob: the array that flows between layers, and its gradient. Storage: the memory behind one or several.

A blob is logically N x C x H x W, as in Caffe. In memory, four- and five-axis activations are channels-last, and so are
the weights of convolutions if the engine prefers it. Other parameters, and the blobs of Python layers, are in C order.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection
from typing import Any, ClassVar

import numpy

from fcaffe.engines.memory import Array, address, aligned_zeros, foreign, logical_view
from fcaffe.errors import NetError, OutOfMemoryError
from fcaffe.net.placements import REPLICATE, Placement

CHANNELS_LAST_AXES = (4, 5)
MOST_VIEWS = 8  # shapes whose views are cached
MAX_AXES = 32
MOST_VALUES = 2**45  # per blob: with 4 bytes each, the memory that a process can address


def checked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, as Python's own numbers. Raises NetError if no blob can have it."""
    if len(shape) > MAX_AXES:
        raise NetError(f"a blob has at most {MAX_AXES} axes, not {len(shape)}")
    if any(dim < 0 for dim in shape):
        raise NetError(f"a blob cannot have the shape {shape}: dimensions are 0 or more")
    shape = tuple(int(dim) for dim in shape)
    if math.prod(shape) > MOST_VALUES or max(shape, default=0) > MOST_VALUES:
        raise NetError(
            f"a blob of shape {shape} would have {math.prod(shape):,} values, more than any memory holds; correct its "
            "dimensions"
        )
    return shape


class Storage:
    """A flat buffer of `size` values, allocated at the first access, and the memory order of the blobs' axes in it.

    Blobs of different shapes can share one, the arena or a flat buffer can provide its buffer, and gradients can be
    cleared without being written. `version` is a number that no other storage has or had. Passes write activations and
    leave it; `change` renews it.
    """

    changes: ClassVar[int] = 0  # of all storages: the newest version

    def __init__(self, xp: Any, channels_last: bool, size: int, dtype: Any = numpy.float32) -> None:
        self.xp = xp
        self.channels_last = channels_last
        self.size = size
        self.dtype = numpy.dtype(dtype)
        self.buffer: Array = None
        self.has_moved = False  # into a flat buffer of parameters, whose order is fixed
        self.is_clear = False  # its values count as zeros, whatever is in the buffer
        self.compute: Callable[[], None] | None = None  # computes values that a pass has not materialised
        self.exposure: Any = None  # the state of `fcaffe.net.script.host_arrays` for it
        self.followers: Collection[Any] = ()
        self._views: dict[tuple[int, ...], Array] = {}
        self._foreign: Any = None  # the buffer, for `window`
        self.change()

    def change(self) -> None:
        """Call it before the values or the memory of parameters or inputs change: what was derived from them is then
        out of date. Followers are called first."""
        for follower in list(self.followers):
            follower.before_change(self)
        Storage.changes += 1
        self.version = Storage.changes

    def follow(self, follower: Any) -> None:
        """Let `change` call `follower.before_change(storage)`, for as long as the follower lives."""
        if not self.followers:
            self.followers = weakref.WeakSet()
        self.followers.add(follower)  # type: ignore[attr-defined]

    @property
    def is_exposed(self) -> bool:
        """Whether a script holds an array of this memory, and so may write it at any moment without `change`."""
        return self.exposure is not None and self.exposure.window is not None and self.exposure.window_is_held

    def view(self, shape: tuple[int, ...]) -> Array:
        if self.is_clear:
            self.settle()
        if self.compute is not None:
            self.compute()
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
            try:
                self.buffer = aligned_zeros(self.xp, self.size, self.dtype)
            except MemoryError as problem:
                raise OutOfMemoryError(f"there is no memory for a blob of shape {shape}: {problem}") from problem
        view = self.logical(self.buffer[: math.prod(shape)], shape)
        if len(self._views) >= MOST_VIEWS:
            self._views.clear()
        self._views[shape] = view
        return view

    @property
    def address(self) -> int:
        """The address of the buffer, which must be allocated, in host memory."""
        return address(self.buffer)

    def clear(self) -> None:
        """Let the values count as zeros without writing any. Until `settle` writes them, or the caller has overwritten
        all of them and unset `is_clear`, only `view` may read the buffer."""
        self.is_clear = self.buffer is not None  # a new buffer is zero

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
        values = None if self.buffer is None else self.view(shape).copy(order="C")
        self.channels_last = False
        self._views.clear()
        if values is not None:
            self.view(shape)[...] = values


class Blob:
    """An N-D array `data` with its gradient `diff`, reshaped on the fly; memory grows and never shrinks.

    `data_storage` and `diff_storage` are the memory behind them, which other blobs may share. `version` counts the
    blob's changes of shape or memory, `changes` those of all blobs.
    """

    changes: ClassVar[int] = 0

    def __init__(
        self, xp: Any, shape: tuple[int, ...] = (), channels_last: bool = False, dtype: Any = "float32"
    ) -> None:
        self.xp = xp
        self.shape: tuple[int, ...] = checked_shape(shape)
        self.version = 0
        self.placement: Placement = REPLICATE  # over the workers
        self._capacity = self.count
        self.data_storage = Storage(xp, channels_last, self._capacity, dtype)
        self.diff_storage = self.data_storage.like(self._capacity)

    @property
    def dtype(self) -> numpy.dtype[Any]:
        return self.data_storage.dtype

    def set_dtype(self, dtype: Any) -> None:
        """Change the dtype of this blob and of all blobs that share its memory. None of them may have a buffer yet."""
        for storage in (self.data_storage, self.diff_storage):
            if storage.dtype != dtype and storage.buffer is not None:
                raise NetError(f"a blob that has {storage.dtype} values cannot become one of {numpy.dtype(dtype)}")
            storage.dtype = numpy.dtype(dtype)
        self._mark_change()

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def data(self) -> Array:
        """A live view: writing it writes the blob."""
        return self.data_storage.view(self.shape)

    @property
    def mutable_data(self) -> Array:
        """`data`, for whoever writes parameters: what was derived from the old values is out of date; see `Storage`."""
        self.data_storage.change()
        return self.data

    @property
    def diff(self) -> Array:
        """A live view of the gradient. `diff_storage.clear` makes it zero, which costs nothing yet."""
        return self.diff_storage.view(self.shape)

    def diff_to_add(self) -> tuple[Array, bool]:
        """The gradient, and whether the caller adds to it or overwrites all of it, since its values count as zeros."""
        add = not self.diff_storage.is_clear
        self.diff_storage.is_clear = False
        return self.diff_storage.view(self.shape), add

    def reshape(self, *shape: int) -> None:
        """Take a new shape. Values stay in memory order as far as they fit, as in Caffe."""
        if shape == self.shape:
            return
        self.shape = checked_shape(shape)
        self._mark_change()
        if self.count > self._capacity:
            self._capacity = self.count
            self.data_storage = self.data_storage.like(self._capacity)
            self.diff_storage = self.diff_storage.like(self._capacity)

    def share_data(self, other: Blob) -> None:
        """Use the other's data from now on (no copy)."""
        self._check_dtype(other)
        if self.data_storage is not other.data_storage:
            self.data_storage = other.data_storage
            self._mark_change()
        self._capacity = max(self.count, min(self._capacity, other._capacity))

    def share_diff(self, other: Blob) -> None:
        self._check_dtype(other)
        if self.diff_storage is not other.diff_storage:
            self.diff_storage = other.diff_storage
            self._mark_change()

    def shares_diff(self, other: Blob) -> bool:
        """Whether both gradients lie in the same memory."""
        own = self.diff_storage
        return own is other.diff_storage or (own.buffer is not None and own.buffer is other.diff_storage.buffer)

    def _mark_change(self) -> None:
        self.version += 1
        Blob.changes += 1

    def _check_dtype(self, other: Blob) -> None:
        if self.dtype != other.dtype:
            raise NetError(f"a blob of {self.dtype} cannot share memory with one of {other.dtype}")

    def move_to(self, data: Array, diff: Array) -> None:
        """Copy data and diff into these flat buffers, which all blobs that share the memory use from now on. The order
        in memory never changes afterwards."""
        for storage, flat in ((self.data_storage, data), (self.diff_storage, diff)):
            storage.logical(flat, self.shape)[...] = storage.view(self.shape)
            storage.change()
            storage.replace(flat)
            storage.has_moved = True

    def logical(self, flat: Array) -> Array:
        """A flat slice in the memory order of `data`, such as one of a solver's history, as a view of this shape."""
        return self.data_storage.logical(flat, self.shape)

    def make_contiguous(self) -> None:
        """Switch to C order permanently, except for parameters in flat buffers."""
        self.data_storage.make_contiguous(self.shape)
        self.diff_storage.make_contiguous(self.shape)

    def canonical_axis(self, axis: int, what: str = "axis") -> int:
        """A negative axis counts from the end."""
        if not -len(self.shape) <= axis < len(self.shape):
            raise NetError(f"{what} {axis} is out of range for a blob of shape {self.shape}")
        return axis % len(self.shape)

    def legacy_shape(self, axis: int) -> int:
        """Dimension `axis` of the shape padded with trailing ones to four axes (num, channels, height, width)."""
        if len(self.shape) > 4:
            raise NetError(f"num, channels, height and width need at most 4 axes, not the shape {self.shape}")
        return self.shape[axis] if axis < len(self.shape) else 1

    @property
    def num(self) -> int:
        return self.legacy_shape(0)

    @property
    def channels(self) -> int:
        return self.legacy_shape(1)

    @property
    def height(self) -> int:
        return self.legacy_shape(2)

    @property
    def width(self) -> int:
        return self.legacy_shape(3)
