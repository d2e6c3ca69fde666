"""Gradients of convolutions by oneDNN's primitives, or as plain products where nothing slides."""

from __future__ import annotations

from ctypes import c_int, c_void_p

from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.convolution import (
    DIRECT,
    Array,
    Convolution,
    geometry,
    grouped,
    is_supported,
    matrix_of,
    preferred,
    rows_of,
)
from fcaffe.engines.onednn.library import VECTOR
from fcaffe.engines.onednn.operation import Operation
from fcaffe.engines.onednn.primitives import Description, Layout
from fcaffe.engines.windows import Windows

PAGE = 4096  # bytes: lines at this distance share a set of the first-level cache
MANY_ROWS = 2048
DY_ROWS, X_ROWS = -2, -3  # uses of temporary memory


class ConvolutionGradients(Convolution):
    """Arguments as of Convolution."""

    def convolution_backward_data(self, dy: Array, weights: Array, dx: Array, windows: Windows, group: int) -> None:
        if not is_supported(dx, windows):
            super().convolution_backward_data(dy, weights, dx, windows, group)
            return
        if self._is_float32_product(windows, group):
            with self.channels_last([dy], [dx]) as (dy_, dx_):
                self.library.sgemm(rows_of(dy_), matrix_of(weights), rows_of(dx_))
            return

        def build() -> Operation:
            library = self.library
            hint = self._describe_forward(dx, weights, False, dy, windows, group, False)

            def describe() -> Description:
                return library.describe(
                    "convolution_backward_data",
                    library.engine,
                    c_int(DIRECT),
                    library.channels_last(dx),
                    Layout(library, grouped(weights, group).shape, self.math),
                    library.channels_last(dy, self.math),
                    *geometry(windows, dx.shape[2:], dy.shape[2:]),
                    hint,
                    library.attributes(),
                )

            # The library's direct code is a sixth faster than its products if channels do not fill whole vectors.
            partial = dx.shape[1] > VECTOR and dx.shape[1] % VECTOR
            description = preferred(describe, "jit:avx512", "brgconv:") if partial else describe()
            inputs = {dnnl.DIFF_DST: library.layout(dy), dnnl.WEIGHTS: library.layout(grouped(weights, group))}
            return Operation(library, description, inputs, {dnnl.DIFF_SRC: library.layout(dx)})

        key = ("convolution data", dx.shape, dx.strides, weights.shape, dy.shape, dy.strides, windows, group)
        whole = set(windows.stride) == {1}  # with others the order of sums is the threads' as well
        operation = self.operation(key, build, (dx, weights, dy) if whole else (), dy.size * weights[0].size)
        operation((address(dy), address(weights)), (address(dx),))

    def convolution_backward_weights(
        self, x: Array, dy: Array, dweights: Array, windows: Windows, group: int, add: bool
    ) -> None:
        if not is_supported(x, windows):
            super().convolution_backward_weights(x, dy, dweights, windows, group, add)
            return
        if self._is_float32_product(windows, group):
            with self.channels_last([dy, x], []) as (dy_, x_), self.library.lock:
                dy_rows, x_rows = self._with_gaps(rows_of(dy_), DY_ROWS), self._with_gaps(rows_of(x_), X_ROWS)
                self.library.sgemm(dy_rows.T, x_rows, matrix_of(dweights), add)
            return

        def build() -> Operation:
            library = self.library
            hint = self._describe_forward(x, dweights, False, dy, windows, group, False)
            description = library.describe(
                "convolution_backward_weights",
                library.engine,
                c_int(DIRECT),
                library.channels_last(x, self.math),
                Layout(library, grouped(dweights, group).shape),
                c_void_p(),
                library.channels_last(dy, self.math),
                *geometry(windows, x.shape[2:], dy.shape[2:]),
                hint,
                library.attributes(),
            )
            inputs = {dnnl.SRC: library.layout(x), dnnl.DIFF_DST: library.layout(dy)}
            outputs = {dnnl.DIFF_WEIGHTS: library.layout(grouped(dweights, group))}
            return Operation(library, description, inputs, outputs)

        key = ("convolution weights", x.shape, x.strides, dweights.shape, dy.shape, dy.strides, windows, group)
        self.operation(key, build)((address(x), address(dy)), (address(dweights),), add)

    def _with_gaps(self, rows: Array, use: int) -> Array:
        """These rows, or a copy whose rows lie at a distance of another number of bytes than a multiple of PAGE.

        A product of AVX2 reads a part of a cache line from each row, then the next part. In rows at such a distance the
        same part lies in the same set of the cache, where few lines stay: the product takes twice as long.
        """
        count, length = rows.shape
        if rows.strides[0] % PAGE or count < MANY_ROWS or self.library.has_avx512():
            return rows
        copy = self.library.temporary_array(use, (count, length + VECTOR), rows.dtype)[:, :length]
        self.copy(rows, copy)
        return copy

    def _is_float32_product(self, windows: Windows, group: int) -> bool:
        """Whether both gradients are plain products of float32 matrices, which are a tenth faster as such."""
        return self.math == dnnl.F32 and group == 1 and windows.is_pointwise()
