"""Convolution with one group for each channel, under the names that forks give it."""

from __future__ import annotations

from fcaffe.layers.convolution import Convolution
from fcaffe.net import Blob, register
from fcaffe.proto import forks


@register("ConvolutionDepthwise")
class ConvolutionDepthwise(Convolution):
    """A Convolution whose num_output and group are the number of channels, whatever the fields say."""

    fork = forks.DEPTHWISE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.convolution_param
        p.num_output = p.group = bottom[0].shape[bottom[0].canonical_axis(p.axis)]
        super().setup(bottom, top)


@register("DepthwiseConvolution")
class DepthwiseConvolution(Convolution):
    """A Convolution, whose `group` a net sets to the number of channels."""

    fork = forks.YOLO
