"""Maximum and average pooling by our own kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import THREADS, blocks_for
from fcaffe.engines.cuda.operands import FLOAT, INT, LIMITS, NULL, Operands, common_type, pack_of
from fcaffe.engines.limits import or_plain
from fcaffe.engines.memory import Array
from fcaffe.engines.pooling import PlainPooling
from fcaffe.engines.windows import Windows
from fcaffe.errors import FcaffeError

LARGEST = 2**31 - 1


class Pooling(Operands, PlainPooling):
    """x (N, C, H, W), y (N, C, output_size...). Kernels have 32-bit indices. Array code pools over other axes."""

    def pool_memory(self, windows: Windows) -> str:
        return "int32"

    @or_plain
    def max_pool_forward(self, x: Array, y: Array, memory: Array | None, windows: Windows) -> None:
        if memory is None:
            self._pool("max_pool_forward", x, y, windows, NULL)
        else:
            self.max_pool_with_indices(x, y, memory, windows)

    @or_plain
    def max_pool_with_indices(self, x: Array, y: Array, mask: Array, windows: Windows) -> None:
        indices = self.result(mask, INT)
        self._pool("max_pool_forward", x, y, windows, indices)
        self.deliver(indices, mask)

    @or_plain
    def index_backward(self, dy: Array, mask: Array, dx: Array, windows: Windows) -> None:
        self._pool("max_pool_backward", dy, dx, windows, self.operand(mask, INT), backward=True)

    def max_pool_backward(self, dy: Array, memory: Array, dx: Array, windows: Windows) -> None:
        self.index_backward(dy, memory, dx, windows)

    def scatter_to_plane(self, dy: Array, mask: Array, dx: Array) -> None:
        """Adds in the order of the values, so that two runs give the same bits."""
        gradients, indices = self.xp.ascontiguousarray(dy), self.xp.ascontiguousarray(mask)
        out = self.xp.empty(dx.shape, FLOAT)
        planes = dx.shape[0] * dx.shape[1]
        sizes = (np.int32(n) for n in (planes, math.prod(dy.shape[2:]), math.prod(dx.shape[2:])))
        arrays = gradients, indices, out
        self.kernels.launch("pooling", "scatter_to_plane", (dy.dtype,), blocks_for(planes, 32), 32, *arrays, *sizes)
        self.copy(out, dx)

    @or_plain
    def average_pool_forward(self, x: Array, y: Array, windows: Windows) -> None:
        self._pool("average_pool_forward", x, y, windows)

    @or_plain
    def average_pool_backward(self, dy: Array, dx: Array, windows: Windows) -> None:
        self._pool("average_pool_backward", dy, dx, windows, backward=True)

    def _pool(
        self, kernel: str, given: Array, result: Array, windows: Windows, *indices: Any, backward: bool = False
    ) -> None:
        """Launch a kernel. That of max pooling takes an array of indices, or NULL."""
        LIMITS["pooling"].check([given, result])
        dtype = common_type(given, result)
        given, out = self.operand(given, dtype), self.result(result, dtype)
        arrays = (given, *indices, out) if backward else (given, out, *indices)
        image, pooled = (out.shape, given.shape) if backward else (given.shape, out.shape)
        pack = pack_of(out.shape[1], given, out)
        count = out.size // pack
        if max(count, math.prod(image[1:]), math.prod(pooled[1:])) > LARGEST:
            raise FcaffeError(f"pooling of {image} to {pooled} has too many values for a GPU: lower batch_size")
        geometry = *image[1:], *pooled[2:], *windows.kernel, *windows.stride, *windows.pad
        numbers = map(np.int32, (count, *geometry))
        self.kernels.launch("pooling", kernel, (dtype, pack), blocks_for(count), THREADS, *arrays, *numbers)
        self.deliver(out, result)
