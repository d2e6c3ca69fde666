"""Blob: the array that flows between layers, and its gradient.

A blob is logically N x C x H x W, as in Caffe. In memory, four- and five-axis activations are channels-last, so that
one ordinary strided array serves every engine at full speed; parameters, and every blob that user code has been given,
are in C order. Layers read and write `data` and `diff` in place and never care which.
"""

from __future__ import annotations

import math
from typing import Any

from fcaffe.engines.memory import aligned_zeros
from fcaffe.errors import NetError

MAX_AXES = 32
CHANNELS_LAST_AXES = (4, 5)
MOST_VIEWS = 8  # that a buffer remembers, of its latest shapes

Array = Any  # numpy.ndarray or cupy.ndarray, float32


class Storage:
    """A flat float32 buffer of `size`, made when first touched, and the order in which blobs lay their axes out in it.

    Several blobs may share one (Split, shared parameters), also with different shapes.
    """

    def __init__(self, xp: Any, channels_last: bool, size: int) -> None:
        self.xp = xp
        self.channels_last = channels_last
        self.size = size
        self.buffer: Array = None
        self.is_stale = False  # what is in the buffer counts as zeros
        self._views: dict[tuple[int, ...], Array] = {}

    def view(self, shape: tuple[int, ...]) -> Array:
        if self.is_stale:
            self.is_stale = False
            self.buffer[...] = 0
        found = self._views.get(shape)
        return self._new_view(shape) if found is None else found

    def replace(self, buffer: Array) -> None:
        """Use another buffer from now on, or, if it is None, a new one when next touched."""
        self.buffer = buffer
        self._views.clear()

    def _new_view(self, shape: tuple[int, ...]) -> Array:
        if self.buffer is None:
            self.buffer = aligned_zeros(self.xp, self.size)
        view = self.buffer[: math.prod(shape)]
        if self.channels_last and len(shape) in CHANNELS_LAST_AXES:
            view = self.xp.moveaxis(view.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
        else:
            view = view.reshape(shape)
        if len(self._views) >= MOST_VIEWS:
            self._views.clear()
        self._views[shape] = view
        return view

    def make_contiguous(self, shape: tuple[int, ...]) -> None:
        """Go over to C order for good, keeping the values of a blob of this shape."""
        if not self.channels_last:
            return
        values = None if self.buffer is None else self.view(shape).copy(order="C")
        self.channels_last = False
        self._views.clear()
        if values is not None:
            self.view(shape)[...] = values


class Blob:
    """An N-D float32 array `data` with its gradient `diff`, reshaped on the fly; memory grows and never shrinks.

    Arguments: the array module, the shape (a scalar has none), and whether memory is channels-last.
    """

    def __init__(self, xp: Any, shape: tuple[int, ...] = (), channels_last: bool = False) -> None:
        self.xp = xp
        self.shape: tuple[int, ...] = tuple(shape)
        self.version = 0  # another after each change of shape or memory
        self._capacity = self.count
        self._data = Storage(xp, channels_last, self._capacity)
        self._diff = Storage(xp, channels_last, self._capacity)

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
        self._diff.is_stale = self._diff.buffer is not None

    def settle_diff(self) -> None:
        """Write the zeros that `clear_diff` left out, if nobody has written anything since."""
        if self._diff.is_stale:
            self._diff.view(self.shape)

    def diff_to_add(self) -> tuple[Array, bool]:
        """The gradient for somebody who will add to all of it; if the second is False he is to overwrite it instead,
        since what is in it counts as zeros."""
        add, self._diff.is_stale = not self._diff.is_stale, False
        return self._diff.view(self.shape), add

    def reshape(self, *shape: int) -> None:
        """Take a new shape; values are kept in memory order as far as they fit, as in Caffe."""
        if shape == self.shape:
            return
        if len(shape) > MAX_AXES:
            raise NetError(f"a blob has at most {MAX_AXES} axes, not {len(shape)}")
        if any(dim < 0 for dim in shape):
            raise NetError(f"a blob cannot have the shape {shape}: dimensions are 0 or more")
        self.shape = tuple(int(dim) for dim in shape)
        self.version += 1
        if self.count > self._capacity:
            self._capacity = self.count
            self._data = Storage(self.xp, self._data.channels_last, self._capacity)
            self._diff = Storage(self.xp, self._diff.channels_last, self._capacity)

    def swap_data(self, other: Blob) -> None:
        """Give the values to the other, a blob of the same shape; what is here then is not said."""
        mine, others = self._data, other._data
        if (mine.size, mine.channels_last) != (others.size, others.channels_last):
            other.data[...] = self.data
            return
        buffer = mine.buffer
        mine.replace(others.buffer)
        others.replace(buffer)

    def share_data(self, other: Blob) -> None:
        """Use the other's data from now on (no copy)."""
        self._data = other._data
        self.version += 1
        self._capacity = max(self.count, min(self._capacity, other._capacity))

    def share_diff(self, other: Blob) -> None:
        self._diff = other._diff
        self.version += 1

    def move_to(self, data: Array, diff: Array) -> None:
        """Copy into these flat buffers and live there from now on, together with all blobs that share this one."""
        for storage, place in ((self._data, data), (self._diff, diff)):
            place[...] = storage.view(self.shape).reshape(-1)
            storage.replace(place)

    def make_contiguous(self) -> None:
        """C order in memory for good, so that `data.reshape(...)` and `data.ravel()` are views that can be written."""
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
