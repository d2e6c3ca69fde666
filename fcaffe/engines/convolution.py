"""Convolution as matrix products over patches of channels-last arrays, any number of spatial axes, groups, dilation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from fcaffe.engines.channels import channels_last
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.memory import Array
from fcaffe.engines.windows import Windows, add_windows, pad_channels_last, patches

PATCH_BYTES = 8 << 20  # patches of this many bytes are unfolded at a time, so that they stay in cache


Fold = Callable[[], tuple[Array, Array]]  # computes new weights and a bias from weights of several layers


class PlainConvolution(PlainElementwise):
    """x (N, C, spatial...), weights (M, C / group, kernel...), bias (M,) or None, y (N, M, output_size...)."""

    def convolution_forward(
        self, x: Array, weights: Array, bias: Array, y: Array, windows: Windows, group: int, relu: bool = False
    ) -> None:
        """y = x * weights + bias, or with `relu` the larger of that and 0."""
        xp = self.xp
        out = channels_last(y)
        output_size = out.shape[1:-1]
        padded = pad_channels_last(xp, channels_last(x), windows, output_size)
        matrices = _weight_matrices(xp, weights, group)
        for batch in self._batches(x.shape[0], output_size, windows, x.shape[1]):
            for matrix, columns, part in _groups(matrices, padded[batch], out[batch], group):
                rows = self._unfold(columns, windows, output_size)
                if part.flags.c_contiguous:
                    xp.matmul(rows, matrix.T, out=part.reshape(rows.shape[0], -1))
                else:
                    part[...] = (rows @ matrix.T).reshape(part.shape)
        if bias is not None:
            out += bias
        if relu:
            self.relu_forward(y, y, 0)

    def folded_convolution(
        self,
        x: Array,
        weights: Array,
        fold: Fold,
        y: Array,
        windows: Windows,
        group: int,
        relu: bool,
        plus: Array | None,
    ) -> bool:
        """y = x * weights + bias, with `plus`, of y's shape, that much more, and with `relu` the larger of that and 0;
        `fold` computes weights of this shape, and the bias. False, and nothing is done, if they would not be cached."""
        folded = self.of_weights(PlainConvolution, fold)
        if folded is None:
            return False
        self.convolution_forward(x, *folded, y, windows, group, relu and plus is None)
        self.add_to(plus, y, relu)
        return True

    def add_to(self, plus: Array | None, y: Array, relu: bool) -> None:
        """y += plus, and with `relu` y is then the larger of that and 0."""
        if plus is not None:
            self.weighted_sum([y, plus], [1.0, 1.0], y)
            if relu:
                self.relu_forward(y, y, 0)

    def convolution_backward_data(self, dy: Array, weights: Array, dx: Array, windows: Windows, group: int) -> None:
        """dx = the gradient of x; also the forward pass of the transposed convolution."""
        xp = self.xp
        dy, out = channels_last(dy), channels_last(dx)
        output_size = dy.shape[1:-1]
        matrices = _weight_matrices(xp, weights, group)
        for batch in self._batches(dy.shape[0], output_size, windows, dx.shape[1]):
            for matrix, part, target in _groups(matrices, dy[batch], out[batch], group):
                rows = xp.ascontiguousarray(part).reshape(-1, part.shape[-1])
                columns = (rows @ matrix).reshape(*part.shape[:-1], *windows.kernel, target.shape[-1])
                if windows.is_pointwise():
                    target[...] = columns.reshape(target.shape)
                    continue
                self._fold(columns, target, windows)

    def convolution_backward_weights(
        self, x: Array, dy: Array, dweights: Array, windows: Windows, group: int, add: bool
    ) -> None:
        """dweights = the gradient of the weights; with `add` += it."""
        xp = self.xp
        if not add:
            dweights[...] = 0
        if not x.shape[0]:
            return
        dy = channels_last(dy)
        output_size = dy.shape[1:-1]
        padded = pad_channels_last(xp, channels_last(x), windows, output_size)
        sums = [0.0] * group
        for batch in self._batches(x.shape[0], output_size, windows, x.shape[1]):
            for index, columns, part in _groups(range(group), padded[batch], dy[batch], group):
                rows = xp.ascontiguousarray(part).reshape(-1, part.shape[-1])
                sums[index] = sums[index] + rows.T @ self._unfold(columns, windows, output_size)
        kernel_first = xp.concatenate(sums).reshape(dweights.shape[0], *windows.kernel, dweights.shape[1])
        dweights += xp.moveaxis(kernel_first, -1, 1)

    def im2col(self, x: Array, y: Array, windows: Windows) -> None:
        """y (N, C * kernel, output_size...) = the windows of x side by side, for each channel its whole window."""
        out = channels_last(y)
        output_size = out.shape[1:-1]
        padded = pad_channels_last(self.xp, channels_last(x), windows, output_size)
        columns = patches(self.xp, padded, windows, output_size)
        out[...] = self.xp.moveaxis(columns, -1, 1 + len(output_size)).reshape(out.shape)

    def col2im(self, dy: Array, dx: Array, windows: Windows) -> None:
        """dx = every value of dy (N, C * kernel, output_size...) added to the element that im2col read it from."""
        dy, out = channels_last(dy), channels_last(dx)
        columns = dy.reshape(*dy.shape[:-1], out.shape[-1], *windows.kernel)
        self._fold(self.xp.moveaxis(columns, dy.ndim - 1, -1), out, windows)

    def _fold(self, columns: Array, out: Array, windows: Windows) -> None:
        """out (N, spatial..., C) = the columns (N, output_size..., kernel..., C) added up where their windows lie."""
        output_size = columns.shape[1 : out.ndim - 1]
        before = (slice(None),) * (1 + len(output_size))
        add_windows(self.xp, out, windows, output_size, lambda offset: columns[before + offset])

    def _unfold(self, padded: Array, windows: Windows, output_size: tuple[int, ...]) -> Array:
        """The patches as rows of a matrix (N * output_size, kernel * C)."""
        channels = padded.shape[-1]
        view = patches(self.xp, padded, windows, output_size)
        return view.reshape(padded.shape[0] * math.prod(output_size), windows.size * channels)

    def _batches(self, n: int, output_size: tuple[int, ...], windows: Windows, channels: int) -> Iterator[slice]:
        """Slices of the batch whose patches fit PATCH_BYTES (at least one image each)."""
        step = max(1, PATCH_BYTES // max(1, 4 * math.prod(output_size) * windows.size * channels))
        for start in range(0, n, step):
            yield slice(start, start + step)


def _weight_matrices(xp: Any, weights: Array, group: int) -> list[Array]:
    """For each group its weights as (M / group, kernel * C / group), channels fastest, as patches have them."""
    rows = xp.ascontiguousarray(xp.moveaxis(weights, 1, -1)).reshape(weights.shape[0], -1)
    return xp.split(rows, group)


def _groups(firsts: Any, a: Array, b: Array, group: int) -> Iterator[tuple[Any, Array, Array]]:
    """Per group: its item of `firsts` and its channels of the channels-last arrays a and b."""
    a_step, b_step = a.shape[-1] // group, b.shape[-1] // group
    for g, first in enumerate(firsts):
        yield first, a[..., g * a_step : (g + 1) * a_step], b[..., g * b_step : (g + 1) * b_step]
