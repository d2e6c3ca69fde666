"""Layers that reorder values: Permute, Transpose, Reverse, Flip, ShuffleChannel, Reorg."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.layers.c_order import copy_values
from fcaffe.net import Array, Blob, Half, Layer, Traits, register
from fcaffe.proto import forks


class Reordering(Layer):
    """Base: the top has the values of the bottom in another order."""

    traits = Traits(bottoms=1, tops=1, half=Half.SAME, reshapes_by_shape=True, repeatable=True, by_sample=True)

    def views(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Views of the bottom's and the top's data, or gradients, that have one shape and one order."""
        raise NotImplementedError

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if top[0] is bottom[0]:
            raise self.error("does not work in place; give its top another name")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = self.views(bottom[0].data, top[0].data)
        self.engine.copy(x, y)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return []

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            dx, dy = self.views(bottom[0].diff, top[0].diff)
            self.engine.copy(dy, dx)

    def need_images(self, bottom: Blob) -> None:
        """LayerError unless the bottom has four axes."""
        if len(bottom.shape) != 4:
            raise self.error(f"needs a bottom of four axes (N, C, H, W), not {bottom.shape}")


@register("Permute")
class Permute(Reordering):
    """top.shape[i] = bottom.shape[order[i]]; axes that `order` does not list follow in their own order."""

    fork = forks.SSD

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        axes = range(len(bottom[0].shape))
        listed = self.listed()
        if not set(listed) <= set(axes) or len(set(listed)) != len(listed):
            raise self.error(
                f"lists the axes {listed}; list axes of the bottom's shape {bottom[0].shape}, each at most once"
            )
        self.order = [*listed, *(axis for axis in axes if axis not in listed)]
        self.traits = replace(self.traits, by_sample=self.order[:1] == [0])
        if self.order == [
            0,
            *axes[2:],
            1,
        ]:  # as the bottom's values lie in memory, so Flatten and this are plain copies
            top[0].make_contiguous()

    def listed(self) -> list[int]:
        return list(self.param.permute_param.order)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != len(self.order):
            raise self.error(f"reorders {len(self.order)} axes, but its bottom has the shape {shape}")
        top[0].reshape(*(shape[axis] for axis in self.order))

    def views(self, x: Array, y: Array) -> tuple[Array, Array]:
        return x.transpose(self.order), y


@register("Transpose")
class Transpose(Permute):
    """top.shape[i] = bottom.shape[dim[i]]; `dim` lists all axes."""

    fork = forks.OCR

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if len(self.listed()) != len(bottom[0].shape):
            raise self.error(f"lists the axes {self.listed()}; list all of the bottom's shape {bottom[0].shape}")
        super().setup(bottom, top)

    def listed(self) -> list[int]:
        return list(self.param.transpose_param.dim)


@register("Reverse")
class Reverse(Reordering):
    """The values along `axis` in reverse order."""

    fork = forks.OCR

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.axis = bottom[0].canonical_axis(self.param.reverse_param.axis)
        self.traits = replace(self.traits, by_sample=self.axis != 0)

    def views(self, x: Array, y: Array) -> tuple[Array, Array]:
        return self.xp.flip(x, self.axis), y


@register("Flip")
class Flip(Reordering):
    """Mirrors images: columns in reverse order if `flip_width`, rows if `flip_height`."""

    fork = forks.WINDOWS

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        p = self.param.flip_param
        self.axes = (2,) * p.flip_height + (3,) * p.flip_width

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.need_images(bottom[0])
        super().reshape(bottom, top)

    def views(self, x: Array, y: Array) -> tuple[Array, Array]:
        return self.xp.flip(x, self.axes), y


@register("ShuffleChannel")
class ShuffleChannel(Reordering):
    """Top channel j * group + i is bottom channel i * (C / group) + j."""

    fork = forks.SHUFFLENET

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.need_images(bottom[0])
        group, channels = self.param.shuffle_channel_param.group, bottom[0].shape[1]
        if not group or channels % group:
            raise self.error(f"shuffle_channel_param.group {group} must divide the {channels} channels of the bottom")
        super().reshape(bottom, top)

    def views(self, x: Array, y: Array) -> tuple[Array, Array]:
        images, channels, *size = x.shape
        group = self.param.shuffle_channel_param.group
        each = channels // group
        return x.reshape(images, group, each, *size).transpose(0, 2, 1, 3, 4), y.reshape(images, each, group, *size)


@register("Reorg")
class Reorg(Reordering):
    """Squares of stride x stride positions become channels: top (N, C * stride^2, H / stride, W / stride).

    With `reverse` channels become squares: top (N, C / stride^2, H * stride, W * stride). The order is Darknet's, which
    needs a C that is a multiple of stride^2 in both directions. As in the fork, the gradient of the bottom is zero.
    """

    fork = forks.YOLO_V2

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.need_images(bottom[0])
        p, (images, channels, height, width) = self.param.reorg_param, bottom[0].shape
        stride = p.stride
        if not stride or channels % stride**2:
            raise self.error(
                f"the square of reorg_param.stride {stride} must divide the {channels} channels of the bottom"
            )
        if p.reverse:
            top[0].reshape(images, channels // stride**2, height * stride, width * stride)
        elif height % stride or width % stride:
            raise self.error(
                f"reorg_param.stride {stride} must divide height and width of the bottom {bottom[0].shape}"
            )
        else:
            top[0].reshape(images, channels * stride**2, height // stride, width // stride)
        self.squares = images, stride, stride, channels // stride**2, height, width

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        images, stride, _, channels, height, width = self.squares
        x = bottom[0].data
        if self.param.reorg_param.reverse:
            source = x.reshape(self.squares).transpose(0, 3, 4, 1, 5, 2)
        else:
            source = x.reshape(images, channels, height, stride, width, stride).transpose(0, 3, 5, 1, 2, 4)
        copy_values(self.xp.ascontiguousarray(source), top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = 0
