"""Layers that reorder values: Permute, Transpose, Reverse, Flip, ShuffleChannel, Reorg."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.layers.c_order import copy_values
from fcaffe.net import Array, Blob, Half, Layer, Traits, register
from fcaffe.net.placements import Placements, Shard, between, by_sample, elementwise
from fcaffe.proto import forks


class Reordering(Layer):
    """Base: the top has the values of the bottom in another order."""

    traits = Traits(
        bottoms=1,
        tops=1,
        half=Half.SAME,
        in_place=False,
        reshapes_by_shape=True,
        reads="neither",
    )
    of_images = False  # the bottom has four axes
    rule = by_sample

    def views(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Views of the bottom's and the top's data, or gradients, that have one shape and one order."""
        raise NotImplementedError

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.of_images and len(bottom[0].shape) != 4:
            raise self.error(f"needs a bottom of four axes (N, C, H, W), not {bottom[0].shape}")
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = self.views(bottom[0].data, top[0].data)
        self.engine.copy(x, y)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dx, dy = self.views(bottom[0].diff, top[0].diff)
        self.engine.copy(dy, dx)


@register("Permute")
@register("Transpose")
class Permute(Reordering):
    """top.shape[i] = bottom.shape[order[i]]; axes that `order` does not list follow in their own order.

    `dim` of a Transpose lists all axes.
    """

    fork = forks.SSD

    def rule(self, bottom: list[Blob]) -> Placements:
        shard = bottom[0].placement
        if not isinstance(shard, Shard):
            return elementwise(self, bottom)
        return [shard], [replace(shard, axis=self.order_of(bottom[0]).index(shard.axis))]

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        axes, listed = range(len(bottom[0].shape)), self.listed()
        if self.type == "Transpose":
            self.fork = forks.OCR
            if len(listed) != len(axes):
                raise self.error(f"lists the axes {listed}; list all of the bottom's shape {bottom[0].shape}")
        if not set(listed) <= set(axes) or len(set(listed)) != len(listed):
            raise self.error(
                f"lists the axes {listed}; list axes of the bottom's shape {bottom[0].shape}, each at most once"
            )
        self.order = self.order_of(bottom[0])
        if self.order == [0, *axes[2:], 1]:  # as the values lie in memory, so Flatten and this are plain copies
            top[0].make_contiguous()

    def listed(self) -> list[int]:
        p = self.param
        return list(p.transpose_param.dim if self.type == "Transpose" else p.permute_param.order)

    def order_of(self, bottom: Blob) -> list[int]:
        listed = self.listed()
        return [*listed, *(axis for axis in range(len(bottom.shape)) if axis not in listed)]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != len(self.order):
            raise self.error(f"reorders {len(self.order)} axes, but its bottom has the shape {shape}")
        top[0].reshape(*(shape[axis] for axis in self.order))

    def views(self, x: Array, y: Array) -> tuple[Array, Array]:
        return x.transpose(self.order), y


@register("Reverse")
class Reverse(Reordering):
    """The values along `axis` in reverse order."""

    fork = forks.OCR
    axes: tuple[int, ...]
    rule = between(lambda layer, x: [x.canonical_axis(layer.param.reverse_param.axis)])

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.axes = (bottom[0].canonical_axis(self.param.reverse_param.axis),)

    def views(self, x: Array, y: Array) -> tuple[Array, Array]:
        return self.xp.flip(x, self.axes), y


@register("Flip")
class Flip(Reverse):
    """Mirrors images: columns in reverse order if `flip_width`, rows if `flip_height`."""

    fork = forks.WINDOWS
    of_images = True
    rule = by_sample

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.axes = (2,) * self.param.flip_param.flip_height + (3,) * self.param.flip_param.flip_width


@register("ShuffleChannel")
class ShuffleChannel(Reordering):
    """Top channel j * group + i is bottom channel i * (C / group) + j."""

    fork = forks.SHUFFLENET
    of_images = True

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        group, (_, channels, *size) = self.param.shuffle_channel_param.group, bottom[0].shape
        if not group or channels % group:
            raise self.error(f"shuffle_channel_param.group {group} must divide the {channels} channels of the bottom")
        self.parts, self.order = (group, channels // group, *size), (0, 2, 1, 3, 4)

    def views(self, x: Array, y: Array) -> tuple[Array, Array]:
        moved = x.reshape(len(x), *self.parts).transpose(self.order)
        return moved, y.reshape(moved.shape)


@register("Reorg")
class Reorg(Reordering):
    """Squares of stride x stride positions become channels: top (N, C * stride^2, H / stride, W / stride).

    With `reverse` channels become squares: top (N, C / stride^2, H * stride, W * stride). The order is Darknet's, which
    needs a C that is a multiple of stride^2 in both directions. As in the fork, the gradient of the bottom is zero.
    """

    fork = forks.YOLO_V2
    of_images = True

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        p, (images, channels, height, width) = self.param.reorg_param, bottom[0].shape
        stride = p.stride
        fits = stride and channels % stride**2 == 0
        if not fits or (not p.reverse and (height % stride or width % stride)):
            raise self.error(
                f"the square of reorg_param.stride {stride} must divide the channels of the bottom {bottom[0].shape}, "
                "and without reverse the stride its height and width"
            )
        if p.reverse:
            top[0].reshape(images, channels // stride**2, height * stride, width * stride)
            self.parts, self.order = (stride, stride, channels // stride**2, height, width), (0, 3, 4, 1, 5, 2)
        else:
            top[0].reshape(images, channels * stride**2, height // stride, width // stride)
            self.parts, self.order = (channels // stride**2, height, stride, width, stride), (0, 3, 5, 1, 2, 4)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        source = bottom[0].data.reshape(bottom[0].num, *self.parts).transpose(self.order)
        copy_values(self.xp.ascontiguousarray(source), top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        bottom[0].diff[...] = 0
