"""Layers of MobileNets: convolutions with one group for each channel, under the names of two forks, and ReLU6."""

from __future__ import annotations

from fcaffe.layers.activations import Pointwise
from fcaffe.layers.convolution import Convolution
from fcaffe.net import Blob, register
from fcaffe.proto import forks


@register("ConvolutionDepthwise")
@register("DepthwiseConvolution")
class DepthwiseConvolution(Convolution):
    """A Convolution. A ConvolutionDepthwise has one group and one output for each channel, whatever its fields say."""

    fork = forks.YOLO
    may_be_fused = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.type == "ConvolutionDepthwise":
            self.fork, p = forks.DEPTHWISE, self.param.convolution_param
            p.num_output = p.group = bottom[0].shape[bottom[0].canonical_axis(p.axis)]
        super().setup(bottom, top)


@register("ReLU6")
class ReLU6(Pointwise):
    """top = min(max(x, 0), 6) + negative_slope * min(x, 0). At 6 the gradient is 0, at 0 the slope. In place too."""

    fork = forks.YOLO
    # in place the bottom is the top, which is between 0 and 6 where the bottom was
    formulas = "min(max(x, 0), 6) + leak * min(x, 0)", "dy * ((x > 0) * (x < 6) + leak * (x <= 0))"

    def numbers(self) -> dict[str, float]:
        return {"leak": self.param.relu6_param.negative_slope}
