"""Convolution and Deconvolution over any number of spatial axes, with groups and dilation; Im2col, their windows."""

from __future__ import annotations

import math
from dataclasses import replace

from fcaffe.engines.windows import Windows
from fcaffe.net import Array, Blob, Half, Layer, Traits, placements, register


class Sliding(Layer):
    """Base of what slides windows, as convolution_param has them, over the axes behind that of the channels.

    The axes before it, one or several or none, number the images.
    """

    rule = placements.before(lambda layer, x: x.canonical_axis(layer.param.convolution_param.axis))

    def find_windows(self, bottom: Blob) -> None:
        """Set self.axis (of the channels) and self.windows."""
        p = self.param.convolution_param
        self.axis = bottom.canonical_axis(p.axis)
        spatial = len(bottom.shape) - self.axis - 1
        self.windows = Windows(
            kernel=self._sizes(spatial, "kernel_size", list(p.kernel_size), ("kernel_h", "kernel_w"), None),
            stride=self._sizes(spatial, "stride", list(p.stride), ("stride_h", "stride_w"), 1),
            pad=self._sizes(spatial, "pad", list(p.pad), ("pad_h", "pad_w"), 0),
            dilation=self._sizes(spatial, "dilation", list(p.dilation), (), 1),
        )
        if 0 in self.windows.kernel or 0 in self.windows.stride:
            raise self.error("kernel and stride must be positive")
        if 0 in self.windows.dilation:
            raise self.error("dilation must be positive: 1 is a window without gaps")

    def output_size(self, size: tuple[int, ...]) -> tuple[int, ...]:
        return self.windows.convolved(size)

    def top_shape(self, shape: tuple[int, ...], channels: int) -> tuple[int, ...]:
        """For a bottom of this shape."""
        size = self.output_size(shape[self.axis + 1 :])
        if any(n < 1 for n in size):
            raise self.error(f"its window of {self.windows.kernel} does not fit into the bottom of shape {shape}")
        return (*shape[: self.axis], channels, *size)

    def images(self, array: Array) -> Array:
        """The array as (N, C, spatial...); a copy where its axes do not say so already."""
        if self.axis == 1:
            return array
        return array.reshape(math.prod(array.shape[: self.axis]), *array.shape[self.axis :])

    def put_back(self, images: Array, array: Array) -> None:
        """Write what was written into `images` of an array into the array itself."""
        if self.axis != 1:
            array[...] = images.reshape(array.shape)

    def _sizes(
        self, spatial: int, field: str, values: list[int], pair: tuple[str, ...], default: int | None
    ) -> tuple[int, ...]:
        """One number a spatial axis: from the repeated field, or from its _h and _w forms (two axes only)."""
        p = self.param.convolution_param
        if any(p.HasField(name) for name in pair):
            if spatial != 2 or values:
                raise self.error(f"{pair[0]} and {pair[1]} are for two spatial axes, and replace {field}")
            return tuple(getattr(p, name) for name in pair)
        if len(values) not in (0, 1, spatial):
            raise self.error(f"{field} is given {len(values)} times for {spatial} spatial axes")
        if not values:
            if default is None:
                raise self.error(f"convolution_param.{field} is missing")
            values = [default]
        return tuple(values * spatial if len(values) == 1 else values)


@register("Convolution")
class Convolution(Sliding):
    """top (N, num_output, sizes...) = bottom (N, C, spatial...) * weights (num_output, C / group, kernel...) + bias.

    Several bottoms share the weights, each with its own top. Output size: floor((n + 2 pad - extent) / stride) + 1.
    """

    traits = Traits(
        bottoms=(1, None),
        tops=(1, None),
        half=Half.ANY,
        reads="bottoms",
        reshapes_by_shape=True,
        reads_before_writing=True,
    )
    transposed = False  # a Deconvolution, which is a Convolution run backward

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if len(bottom) != len(top):
            raise self.error(f"needs as many tops as bottoms, not {len(top)} for {len(bottom)}")
        self.find_windows(bottom[0])
        if len(self.windows.kernel) > 3:  # cuDNN has none of these, and CuPy's products cannot be recorded
            self.traits = replace(self.traits, needs_host=True)
        p = self.param.convolution_param
        self.group = p.group
        self.channels = bottom[0].shape[self.axis]
        if p.num_output < 1:
            raise self.error("convolution_param.num_output must be positive")
        if self.group < 1 or self.channels % self.group or p.num_output % self.group:
            raise self.error(
                f"group {self.group} must divide the {self.channels} input channels and the {p.num_output} outputs"
            )
        channels_last = self.engine.weights_channels_last
        self.add_blob(*self.weight_shape(), channels_last=channels_last, filler=p.weight_filler)
        if p.bias_term:
            self.add_blob(p.num_output, filler=p.bias_filler)

    def weight_shape(self) -> tuple[int, ...]:
        return (self.param.convolution_param.num_output, self.channels // self.group, *self.windows.kernel)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        first = bottom[0].shape
        if first[self.axis] != self.channels:
            raise self.error(f"has weights for {self.channels} channels, but its bottom has the shape {first}")
        shape = self.top_shape(first, self.param.convolution_param.num_output)
        for x, y in zip(bottom, top, strict=True):
            if x.shape != first:
                raise self.error(f"all bottoms must have one shape, not {first} and {x.shape}")
            y.reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob], relu: bool = False) -> None:
        for x, y in zip(bottom, top, strict=True):
            images = self.images(y.data)
            self.forward_images(self.images(x.data), images, relu)
            self.put_back(images, y.data)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return bottom if self.param_propagate_down[0] else []

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        for x, y, down in zip(bottom, top, propagate_down, strict=True):
            dy = self.images(y.diff)
            self.backward_parameters(self.images(x.data), dy)
            if down:
                dx = self.images(x.diff)
                self.backward_images(dy, dx)
                self.put_back(dx, x.diff)

    def forward_images(self, x: Array, y: Array, relu: bool) -> None:
        """Write y, the outputs for x, or with `relu` the larger of these and 0; both (N, channels, spatial...)."""
        self.engine.convolution_forward(x, self.blobs[0].data, self.bias(), y, self.windows, self.group, relu)

    def backward_parameters(self, x: Array, dy: Array) -> None:
        """Add the gradients of the weights and of the bias to theirs."""
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            self.engine.bias_backward(dy, *self.blobs[1].diff_to_add())
        if self.param_propagate_down[0]:
            dweights, add = self.blobs[0].diff_to_add()
            source, slope = (dy, x) if self.transposed else (x, dy)
            self.engine.convolution_backward_weights(source, slope, dweights, self.windows, self.group, add)

    def backward_images(self, dy: Array, dx: Array) -> None:
        """Write dx, the gradient of x."""
        self.engine.convolution_backward_data(dy, self.blobs[0].data, dx, self.windows, self.group)

    def bias(self) -> Array | None:
        return self.blobs[1].data if len(self.blobs) > 1 else None

    def macs(self, bottom: list[Blob], top: list[Blob]) -> int:
        return sum(blob.count for blob in (bottom if self.transposed else top)) * math.prod(self.blobs[0].shape[1:])


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

    def forward_images(self, x: Array, y: Array, relu: bool) -> None:
        self.engine.convolution_backward_data(x, self.blobs[0].data, y, self.windows, self.group)
        bias = self.bias()
        if bias is not None:
            self.engine.add_bias(y, bias, relu)

    def backward_images(self, dy: Array, dx: Array) -> None:
        self.engine.convolution_forward(dy, self.blobs[0].data, None, dx, self.windows, self.group)


@register("Im2col")
class Im2col(Sliding):
    """top (N, C * kernel, sizes...) = the values of each window, channel by channel, in row order.

    Windows are those of convolution_param; num_output and group mean nothing here.
    """

    traits = Traits(bottoms=1, tops=1, reads="neither")
    ignores_propagate_down = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.find_windows(bottom[0])

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        top[0].reshape(*self.top_shape(shape, shape[self.axis] * self.windows.size))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        y = self.images(top[0].data)
        self.engine.im2col(self.images(bottom[0].data), y, self.windows)
        self.put_back(y, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dx = self.images(bottom[0].diff)
        self.engine.col2im(self.images(top[0].diff), dx, self.windows)
        self.put_back(dx, bottom[0].diff)
