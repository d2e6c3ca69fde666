"""Blob: the array that flows between layers, and its gradient.

A blob is logically N x C x H x W, as in Caffe. In memory, four- and five-axis activations are channels-last, so that
one ordinary strided array serves every engine at full speed; so are the weights of convolutions where the engine likes
them that way. Other parameters, and every blob that user code has been given, are in C order. Layers read and write
`data` and `diff` in place and never care which.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy

from fcaffe.errors import NetError
from fcaffe.net.storage import Array, Storage

MAX_AXES = 32
MOST_VALUES = 2**45  # of a blob: with 4 bytes each, as much memory as a process can address


def checked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, as Python's own numbers. Raises NetError if no blob can have it."""
    if len(shape) > MAX_AXES:
        raise NetError(f"a blob has at most {MAX_AXES} axes, not {len(shape)}")
    if any(dim < 0 for dim in shape):
        raise NetError(f"a blob cannot have the shape {shape}: dimensions are 0 or more")
    shape = tuple(int(dim) for dim in shape)
    if math.prod(shape) > MOST_VALUES or max(shape, default=0) > MOST_VALUES:
        raise NetError(
            f"a blob of shape {shape} would have {math.prod(shape):,} values, more than any memory holds; correct what "
            "its dimensions come from"
        )
    return shape


class Blob:
    """An N-D array `data` with its gradient `diff`, reshaped on the fly; memory grows and never shrinks.

    `changes` counts those of shape or memory, of all blobs together: while it stays, so do all `version`s.

    Arguments: the array module, the shape (a scalar has none), whether memory is channels-last, and the dtype.
    """

    changes: ClassVar[int] = 0

    def __init__(
        self, xp: Any, shape: tuple[int, ...] = (), channels_last: bool = False, dtype: Any = "float32"
    ) -> None:
        self.xp = xp
        self.shape: tuple[int, ...] = checked_shape(shape)
        self.version = 0  # another after each change of shape or memory
        self.each_sample: int | None = None  # values for each sample of the batch, if all passes have as many
        self._capacity = self.count
        self._data = Storage(xp, channels_last, self._capacity, dtype)
        self._diff = self._data.like(self._capacity)

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """Of `data` and `diff` alike."""
        return self._data.dtype

    def set_dtype(self, dtype: Any) -> None:
        """Another dtype, for this blob and those it shares memory with; none of them may have been touched yet."""
        for storage in (self._data, self._diff):
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
        return self._data.view(self.shape)

    @property
    def diff(self) -> Array:
        """A live view of the gradient."""
        return self._diff.view(self.shape)

    def clear_diff(self) -> None:
        """Make the gradient zero, which costs nothing yet: see `diff_to_add`."""
        self._diff.clear()

    @property
    def is_clear(self) -> bool:
        """Whether `clear_diff` has left out zeros that still count."""
        return self._diff.is_clear

    def mark_diff_written(self) -> None:
        """Somebody has overwritten the gradient without asking `diff_to_add`."""
        self._diff.mark_written()

    def settle_diff(self) -> None:
        """Write the zeros that `clear_diff` left out, if nobody has written anything since."""
        self._diff.settle()

    def diff_to_add(self) -> tuple[Array, bool]:
        """The gradient for somebody who will add to all of it; if the second is False he is to overwrite it instead,
        since what is in it counts as zeros."""
        add = not self._diff.is_clear
        self._diff.mark_written()
        return self._diff.view(self.shape), add

    def reshape(self, *shape: int) -> None:
        """Take a new shape; values are kept in memory order as far as they fit, as in Caffe."""
        if shape == self.shape:
            return
        self.shape = checked_shape(shape)
        self._mark_change()
        if self.count > self._capacity:
            self._capacity = self.count
            self._data = self._data.like(self._capacity)
            self._diff = self._diff.like(self._capacity)

    def uses(self, storage: Storage) -> bool:
        """Whether its data or its diff lie there."""
        return storage in (self._data, self._diff)

    def share_data(self, other: Blob) -> None:
        """Use the other's data from now on (no copy)."""
        self._check_dtype(other)
        if self._data is not other._data:
            self._data = other._data
            self._mark_change()
        self._capacity = max(self.count, min(self._capacity, other._capacity))

    def share_diff(self, other: Blob) -> None:
        self._check_dtype(other)
        if self._diff is not other._diff:
            self._diff = other._diff
            self._mark_change()

    def _mark_change(self) -> None:
        self.version += 1
        Blob.changes += 1

    def _check_dtype(self, other: Blob) -> None:
        if self.dtype != other.dtype:
            raise NetError(f"a blob of {self.dtype} cannot share memory with one of {other.dtype}")

    def move_to(self, data: Array, diff: Array) -> None:
        """Copy into these flat buffers and live there from now on, together with all blobs that share this one.

        The order in memory stays as it is, for good: see `logical`.
        """
        for storage, flat in ((self._data, data), (self._diff, diff)):
            storage.logical(flat, self.shape)[...] = storage.view(self.shape)
            storage.replace(flat)
            storage.has_moved = True

    def logical(self, flat: Array) -> Array:
        """Its part of a flat buffer in the order of `data`, such as a solver's history, as a view of its shape."""
        return self._data.logical(flat, self.shape)

    def make_contiguous(self) -> None:
        """C order in memory for good, so that `data.reshape(...)` and `data.ravel()` are views that can be written.

        Parameters in flat buffers stay in the order that these have.
        """
        self._data.make_contiguous(self.shape)
        self._diff.make_contiguous(self.shape)

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
