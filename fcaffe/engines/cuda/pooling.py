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

MOST = 1 << 31


class Pooling(Packs, PlainPooling):
    """x (N, C, H, W), y (N, C, output_size...). Arrays too large for 32-bit indices take the plain operators."""

    def max_pool_forward(self, x: Array, y: Array, memory: Array | None, windows: Windows) -> None:
        if memory is None and _fits(x, y):
            self._pool("max_pool_forward", x, y, windows, NULL)
        else:
            super().max_pool_forward(x, y, memory, windows)

    def max_pool_with_indices(self, x: Array, y: Array, mask: Array, windows: Windows) -> None:
        if not _fits(x, y):
            super().max_pool_with_indices(x, y, mask, windows)
            return
        indices = self.result(mask, FLOAT)
        self._pool("max_pool_forward", x, y, windows, indices)
        self.deliver(indices, mask)

    def index_backward(self, dy: Array, mask: Array, dx: Array, windows: Windows) -> None:
        if _fits(dx, dy):
            self._pool_backward("max_pool_backward", dy, dx, windows, self.operand(mask, FLOAT))
        else:
            super().index_backward(dy, mask, dx, windows)

    def scatter_to_plane(self, dy: Array, mask: Array, dx: Array) -> None:
        """Adds in the order of the values, so that two runs give the same bits."""
        gradients, indices = self.xp.ascontiguousarray(dy), self.xp.ascontiguousarray(mask)
        out = self.xp.empty(dx.shape, FLOAT)
        planes = dx.shape[0] * dx.shape[1]
        sizes = (np.int32(n) for n in (planes, math.prod(dy.shape[2:]), math.prod(dx.shape[2:])))
        arrays = gradients, indices, out
        self.kernels.launch("pooling", "scatter_to_plane", (dy.dtype,), blocks_for(planes, 32), 32, *arrays, *sizes)
        self.copy(out, dx)

    def average_pool_forward(self, x: Array, y: Array, windows: Windows) -> None:
        if _fits(x, y):
            self._pool("average_pool_forward", x, y, windows)
        else:
            super().average_pool_forward(x, y, windows)

    def average_pool_backward(self, dy: Array, dx: Array, windows: Windows) -> None:
        if _fits(dx, dy):
            self._pool_backward("average_pool_backward", dy, dx, windows)
        else:
            super().average_pool_backward(dy, dx, windows)

    def _pool(self, kernel: str, x: Array, y: Array, windows: Windows, *indices: Any) -> None:
        """Launch a forward kernel. That of max pooling takes an array of indices or NULL."""
        dtype = common_type(x, y)
        x, out = self.operand(x, dtype), self.result(y, dtype)
        pack = pack_of(x.shape[1], x, out)
        self._launch_pooling(kernel, pack, (x, out, *indices), np.int32(out.size // pack), *_geometry(x, out, windows))
        self.deliver(out, y)

    def _pool_backward(self, kernel: str, dy: Array, dx: Array, windows: Windows, *indices: Array) -> None:
        dtype = common_type(dy, dx)
        dy, out = self.operand(dy, dtype), self.result(dx, dtype)
        pack = pack_of(dy.shape[1], dy, out)
        self._launch_pooling(
            kernel, pack, (dy, *indices, out), np.int32(out.size // pack), *_geometry(out, dy, windows)
        )
        self.deliver(out, dx)

    def _launch_pooling(
        self, kernel: str, pack: int, arrays: tuple[Any, ...], count: np.int32, *sizes: np.int32
    ) -> None:
        types = arrays[0].dtype, pack
        self.kernels.launch("pooling", kernel, types, blocks_for(int(count)), THREADS, *arrays, count, *sizes)


def _fits(x: Array, y: Array) -> bool:
    """Whether the arrays are not empty, and 32 bits can index the values of an image and the packs."""
    least_pack = 4 if x.shape[1] % 8 == 0 else 1
    image, packs = max(math.prod(x.shape[1:]), math.prod(y.shape[1:])), max(x.size, y.size) // least_pack
    return min(x.size, y.size) > 0 and max(image, packs) < MOST


def _geometry(x: Array, y: Array, windows: Windows) -> tuple[np.int32, ...]:
    """GEOMETRY in pooling.cu."""
    numbers = (x.shape[1], *x.shape[2:], *y.shape[2:], *windows.kernel, *windows.stride, *windows.pad)
    return tuple(np.int32(number) for number in numbers)
