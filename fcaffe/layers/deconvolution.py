"""Deconvolution: the transposed convolution, which makes images larger."""

from __future__ import annotations

from fcaffe.layers.convolution import Convolution
from fcaffe.net import Array, register


@register("Deconvolution")
class Deconvolution(Convolution):
    """A Convolution from the top to the bottom, run backward: its gradient is the output here, and the other way round.

    The weights are those of that convolution, (C, num_output / group, kernel...); the bias is the top's. Output size:
    stride * (n - 1) + extent - 2 pad.
    """

    transposed = True

    def weight_shape(self) -> tuple[int, ...]:
        return (self.channels, self.param.convolution_param.num_output // self.group, *self.windows.kernel)

    def output_size(self, size: tuple[int, ...]) -> tuple[int, ...]:
        return self.windows.deconvolved(size)

    def forward_images(self, x: Array, y: Array, relu: bool = False) -> None:
        self.engine.convolution_backward_data(x, self.blobs[0].data, y, self.windows, self.group)
        bias = self.bias()
        if bias is not None:
            self.engine.add_bias(y, bias)

    def backward_images(self, dy: Array, dx: Array) -> None:
        self.engine.convolution_forward(dy, self.blobs[0].data, None, dx, self.windows, self.group)
