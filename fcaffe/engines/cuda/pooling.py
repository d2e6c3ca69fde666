"""Maximum and average pooling by our own kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import THREADS, blocks_for
from fcaffe.engines.cuda.packs import FLOAT, NULL, Packs, common_type, pack_of
from fcaffe.engines.pooling import PlainPooling
from fcaffe.engines.windows import Windows

Array = Any

NONE, IN_WINDOW, IN_LARGE_WINDOW, IN_PLANE = 0, 1, 2, 4  # bytes of the index of a maximum; see pooling.cu
# Kernel and stride of windows that have kernels of their own, and how many of them, below each other, a thread does.
SQUARES = {(3, 2): 2, (3, 1): 4, (2, 2): 2}
SIDE = 2  # of the square of elements that a thread does backward; as in pooling.cu
MOST = 1 << 31
PACKS = 32  # side by side in a block of average_pool_whole


class Pooling(Packs, PlainPooling):
    """x (N, C, H, W), y (N, C, positions...). `memory`, of `index_dtype`, holds the index of each maximum: in its
    window, as an integer of one or two bytes, or in the plane, as float32, if the window is too large for these."""

    def index_dtype(self, windows: Windows) -> str:
        return {IN_WINDOW: "uint8", IN_LARGE_WINDOW: "uint16"}.get(_code(windows), "float32")

    def max_pool_forward(self, x: Array, y: Array, memory: Array | None, windows: Windows) -> None:
        code = _code(windows)
        if not y.size:
            return
        if code == IN_PLANE or not _fits(x, y):
            super().max_pool_forward(x, y, memory, windows)
        elif memory is None:
            self._pool("max_pool_forward", x, y, windows, NULL, code=(NONE,))
        else:
            self._pool("max_pool_forward", x, y, windows, memory, code=(code,))

    def max_pool_backward(self, dy: Array, memory: Array, dx: Array, windows: Windows) -> None:
        code = _code(windows)
        if not dy.size:
            dx[...] = 0
        elif code == IN_PLANE or not _fits(dx, dy):
            super().max_pool_backward(dy, memory, dx, windows)
        else:
            self._pool_backward("max_pool_backward", dy, dx, windows, memory, code=(code,))

    def max_pool_with_indices(self, x: Array, y: Array, mask: Array, windows: Windows) -> None:
        if not _fits(x, y):
            super().max_pool_with_indices(x, y, mask, windows)
            return
        positions = self.result(mask, FLOAT)
        self._pool("max_pool_forward", x, y, windows, positions, code=(IN_PLANE,))
        self.deliver(positions, mask)

    def index_backward(self, dy: Array, mask: Array, dx: Array, windows: Windows) -> None:
        if _fits(dx, dy):
            positions = self.operand(mask, FLOAT)
            self._pool_backward("max_pool_backward", dy, dx, windows, positions, code=(IN_PLANE,))
        else:
            super().index_backward(dy, mask, dx, windows)

    def scatter_to_plane(self, dy: Array, mask: Array, dx: Array) -> None:
        """dx = dy added up, in order, at the indices in `mask`; indices outside the plane are ignored."""
        dy, mask = self._dense(dy, dy.dtype), self._dense(mask, FLOAT)
        out = dx if dx.flags.c_contiguous and dx.dtype == FLOAT else self.result(dx, FLOAT)
        planes, threads = dx.shape[0] * dx.shape[1], 32
        sizes = (np.int32(n) for n in (planes, dx.shape[1], math.prod(dy.shape[2:]), math.prod(dx.shape[2:])))
        steps = (step for array in (dy, mask, out) for step in _steps(array))
        blocks = blocks_for(planes, threads)
        self.kernels.launch("pooling", "scatter_to_plane", (dy.dtype,), blocks, threads, dy, mask, out, *sizes, *steps)
        self.deliver(out, dx)

    def average_pool_forward(self, x: Array, y: Array, windows: Windows) -> None:
        if not _fits(x, y):
            super().average_pool_forward(x, y, windows)
        elif _is_whole(x, y, windows):
            self._average_whole(x, y)
        else:
            self._pool("average_pool_forward", x, y, windows)

    def average_pool_backward(self, dy: Array, dx: Array, windows: Windows) -> None:
        if _fits(dx, dy):
            self._pool_backward("average_pool_backward", dy, dx, windows)
        else:
            super().average_pool_backward(dy, dx, windows)

    def _average_whole(self, x: Array, y: Array) -> None:
        dtype = common_type(x, y)
        x, out = self.operand(x, dtype), self.result(y, dtype)
        pack = pack_of(x.shape[1], x, out)
        groups = -(-x.shape[1] // (PACKS * pack))
        sizes = (np.int32(x.shape[2] * x.shape[3]), np.int32(x.shape[1]), np.int32(groups))
        blocks, threads = x.shape[0] * groups, (PACKS, THREADS // PACKS)
        self.kernels.launch("pooling", "average_pool_whole", (dtype, pack), blocks, threads, x, out, *sizes)
        self.deliver(out, y)

    def _pool(
        self, kernel: str, x: Array, y: Array, windows: Windows, *memory: Any, code: tuple[int, ...] = ()
    ) -> None:
        """Launch a forward kernel; `code` (NONE or other) where it has a `memory` (or NULL)."""
        dtype = common_type(x, y)
        x, out = self.operand(x, dtype), self.result(y, dtype)
        pack = pack_of(x.shape[1], x, out, *(array for array in memory if array is not NULL))
        types, count, geometry = (dtype, pack, *code), out.size // pack, _geometry(x, out, windows)
        if code in ((NONE,), (IN_WINDOW,)) and pack > 1 and _is_square(x, out, windows):
            square = (windows.kernel[0], windows.stride[0])
            down = SQUARES[square]
            kernel, types = "max_pool_square_forward", (*types, *square, down)
            count = count // out.shape[2] * -(-out.shape[2] // down)
            geometry = _square_geometry(x, out, windows, pack)
        sizes = (np.int32(count), *geometry)
        self.kernels.launch("pooling", kernel, types, blocks_for(count), THREADS, x, out, *memory, *sizes)
        self.deliver(out, y)

    def _pool_backward(
        self, kernel: str, dy: Array, dx: Array, windows: Windows, *memory: Array, code: tuple[int, ...] = ()
    ) -> None:
        dtype = common_type(dy, dx)
        dy, out = self.operand(dy, dtype), self.result(dx, dtype)
        pack = pack_of(dy.shape[1], dy, out, *memory)
        types, count, geometry = (dtype, pack, *code), out.size // pack, _geometry(out, dy, windows)
        if code == (IN_WINDOW,) and pack > 1 and _is_square(out, dy, windows):
            stride = windows.stride[0]
            kernel, types = "max_pool_square_backward", (dtype, pack, windows.kernel[0], stride)
            first = [pad // stride * stride for pad in windows.pad]
            items = [-(-(n + pad - f) // SIDE) for n, pad, f in zip(out.shape[2:], windows.pad, first, strict=True)]
            count = out.shape[0] * math.prod(items) * (out.shape[1] // pack)
            geometry = (*(np.int32(n) for n in (*items, *first)), *_square_geometry(out, dy, windows, pack))
        sizes = (np.int32(count), *geometry)
        self.kernels.launch("pooling", kernel, types, blocks_for(count), THREADS, dy, *memory, out, *sizes)
        self.deliver(out, dx)

    def _dense(self, array: Array, dtype: np.dtype[Any]) -> Array:
        return array if array.flags.c_contiguous and array.dtype == dtype else self.operand(array, dtype)


def _code(windows: Windows) -> int:
    """The bytes that hold an index in the window, or that there is none."""
    return IN_WINDOW if windows.size < 0xFF else IN_LARGE_WINDOW if windows.size < 0xFFFF else IN_PLANE


def _fits(x: Array, y: Array) -> bool:
    """Whether the arrays are not empty, and 32 bits can index the values of an image and the packs."""
    least_pack = 4 if x.shape[1] % 8 == 0 else 1
    image, packs = max(math.prod(x.shape[1:]), math.prod(y.shape[1:])), max(x.size, y.size) // least_pack
    return min(x.size, y.size) > 0 and max(image, packs) < MOST


def _is_whole(x: Array, y: Array, windows: Windows) -> bool:
    """Whether there is one window, over the whole image and nothing else."""
    covers = all(k >= n for k, n in zip(windows.kernel, x.shape[2:], strict=True))
    return covers and tuple(y.shape[2:]) == (1, 1) and tuple(windows.pad) == (0, 0)


def _is_square(x: Array, y: Array, windows: Windows) -> bool:
    """Whether the windows are some of SQUARES, each with something of the image in it."""
    kernel, stride = windows.kernel[0], windows.stride[0]
    ends = zip(x.shape[2:], y.shape[2:], windows.pad, strict=True)
    return (
        (kernel, stride) in SQUARES
        and windows.kernel == (kernel, kernel)
        and windows.stride == (stride, stride)
        and all(pad < kernel and (positions - 1) * stride - pad < n for n, positions, pad in ends)
    )


def _square_geometry(x: Array, y: Array, windows: Windows, pack: int) -> tuple[np.int32, ...]:
    """What pooling.cu calls SQUARE_GEOMETRY."""
    numbers = (x.shape[1] // pack, *x.shape[2:], *y.shape[2:], *windows.pad)
    return tuple(np.int32(number) for number in numbers)


def _geometry(x: Array, y: Array, windows: Windows) -> tuple[np.int32, ...]:
    """What pooling.cu calls GEOMETRY."""
    numbers = (x.shape[1], *x.shape[2:], *y.shape[2:], *windows.kernel, *windows.stride, *windows.pad)
    return tuple(np.int32(number) for number in numbers)


def _steps(array: Array) -> tuple[np.int32, np.int32]:
    """The strides of channels and of positions in a dense array."""
    channels, positions = array.shape[1], math.prod(array.shape[2:])
    steps = (positions, 1) if array.flags.c_contiguous else (1, channels)
    return np.int32(steps[0]), np.int32(steps[1])
