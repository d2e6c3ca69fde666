"""Blob: the array that flows between layers, and its gradient.

A blob is logically N x C x H x W, as in Caffe. In memory, four- and five-axis activations are channels-last, so that
one ordinary strided array serves every engine at full speed. So are the weights of convolutions if the engine prefers
it. Other parameters, and the blobs of Python layers, are in C order. Layers read and write `data` and `diff` and do not
depend on the order.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy

from fcaffe.errors import NetError
from fcaffe.net.placements import REPLICATE, Placement
from fcaffe.net.storage import Array, Storage

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


class Blob:
    """An N-D array `data` with its gradient `diff`, reshaped on the fly; memory grows and never shrinks.

    `data_storage` and `diff_storage` are the memory behind them, which other blobs may share. `version` counts the
    blob's changes of shape or memory, `changes` those of all blobs.

    Arguments: the array module, the shape (a scalar has none), whether memory is channels-last, and the dtype.
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
        """The dtype of `data` and of `diff`."""
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
    def diff(self) -> Array:
        """A live view of the gradient. `diff_storage.clear` makes it zero, which costs nothing yet."""
        return self.diff_storage.view(self.shape)

    def diff_to_add(self) -> tuple[Array, bool]:
        """The gradient, and whether the caller has to add to it. If not, the caller overwrites all of it: its values
        count as zeros."""
        add = not self.diff_storage.is_clear
        self.diff_storage.mark_written()
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

    def _mark_change(self) -> None:
        self.version += 1
        Blob.changes += 1

    def _check_dtype(self, other: Blob) -> None:
        if self.dtype != other.dtype:
            raise NetError(f"a blob of {self.dtype} cannot share memory with one of {other.dtype}")

    def move_to(self, data: Array, diff: Array) -> None:
        """Copy data and diff into these flat buffers and use them from now on, as do all blobs that share memory.

        The order in memory never changes afterwards; see `logical`.
        """
        for storage, flat in ((self.data_storage, data), (self.diff_storage, diff)):
            storage.logical(flat, self.shape)[...] = storage.view(self.shape)
            storage.replace(flat)
            storage.has_moved = True

    def logical(self, flat: Array) -> Array:
        """A flat slice in the memory order of `data`, such as one of a solver's history, as a view of this shape."""
        return self.data_storage.logical(flat, self.shape)

    def make_contiguous(self) -> None:
        """Switch to C order permanently, so that `data.reshape(...)` and `data.ravel()` are writable views.

        Parameters in flat buffers keep their order.
        """
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
