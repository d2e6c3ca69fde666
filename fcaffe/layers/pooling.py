"""Pooling: maximum, average or stochastic, over one or more spatial axes."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np

from fcaffe.engines.windows import Windows
from fcaffe.net import Blob, Half, Layer, Traits, register
from fcaffe.net.noise import Noise
from fcaffe.net.placements import Placements, by_sample, first_axis, with_noise
from fcaffe.proto import caffe_pb2 as pb

MAX, AVE, STOCHASTIC = pb.PoolingParameter.MAX, pb.PoolingParameter.AVE, pb.PoolingParameter.STOCHASTIC


@register("Pooling")
class Pooling(Layer):
    """top (N, C, sizes...) from windows of bottom (N, C, spatial...); MAX's second top has the index of each maximum.

    Output size: ceil((n + 2 pad - kernel) / stride) + 1, or floor with `round_mode: FLOOR`; with padding, one less if
    the last window would start beyond the image and its first padding. Without padding it stays, so a window may lie
    outside the image, as in Caffe: MAX then gives -FLT_MAX, AVE 0 / 0. AVE counts padding, unless Intel's field
    `avg_include_pad` is false.
    """

    traits = Traits(bottoms=1, tops=(1, 2), reshapes_by_shape=True)

    def rule(self, bottom: list[Blob]) -> Placements:
        random = self.param.pooling_param.pool == STOCHASTIC and self.phase == pb.TRAIN
        return (with_noise(first_axis) if random else by_sample)(self, bottom)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.pooling_param
        self.method = p.pool
        if len(bottom[0].shape) < 3:
            raise self.error(f"needs a bottom of three or more axes, as (N, C, H, W), not {bottom[0].shape}")
        if len(top) == 2 and self.method != MAX:
            raise self.error("only MAX pooling has a second top")
        self.windows = self._stated_windows(bottom[0])
        takes_one = self.method == MAX or (self.method == STOCHASTIC and self.phase == pb.TRAIN)
        self.own_indices = len(top) == 1 and takes_one  # in `memory`
        is_steady = self.method == MAX and not p.global_pooling
        dtype = self.engine.pool_memory(self.windows) if is_steady else "int32"
        self.memory = Blob(self.xp, (), channels_last=True, dtype=dtype)
        self.leaves_out_pad = self.method == AVE and any(self.windows.pad) and not p.avg_include_pad
        if self.method == STOCHASTIC and self.phase == pb.TRAIN:  # the host draws the random numbers
            self.noise, self.traits = Noise(self, bottom[0]), replace(self.traits, needs_host=True)
        elif len(top) == 1 and not self.leaves_out_pad:  # else computed in float32
            self.traits = replace(self.traits, half=Half.SAME)

    def _stated_windows(self, bottom: Blob) -> Windows:
        """The windows that the prototxt states. Raises LayerError if they make no sense."""
        p = self.param.pooling_param
        kernel: tuple[int, ...] = bottom.shape[2:]
        if not p.global_pooling:
            kernel = self._sizes("kernel_size", "kernel", len(kernel))
        elif p.kernel_size_3d or any(p.HasField(field) for field in ("kernel_size", "kernel_h", "kernel_w")):
            raise self.error("global_pooling takes its kernel from the bottom; leave out kernel_size")
        pad, stride = self._sizes("pad", "pad", len(kernel)), self._sizes("stride", "stride", len(kernel))
        if min(kernel) < 1 or min(stride) < 1:
            raise self.error(f"kernel {kernel} and stride {stride} must be positive")
        if p.global_pooling and (any(pad) or max(stride) > 1):
            raise self.error("global_pooling goes with pad 0 and stride 1 only")
        if any(pad) and self.method == STOCHASTIC:
            raise self.error("padding is for MAX and AVE pooling only")
        if any(before >= k for before, k in zip(pad, kernel, strict=True)):
            raise self.error(f"pad {pad} must be smaller than the kernel {kernel}")
        return Windows(kernel, stride, pad, (1,) * len(kernel))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) - 2 != len(self.windows.kernel):
            raise self.error(f"pools over {len(self.windows.kernel)} axes, but its bottom has the shape {shape}")
        if self.param.pooling_param.global_pooling:
            self.windows = replace(self.windows, kernel=shape[2:])
        size = tuple(self._output_size(axis, n) for axis, n in enumerate(shape[2:]))
        if min(size) < 1:
            raise self.error(f"its window of {self.windows.kernel} does not fit into the bottom of shape {shape}")
        for blob in top:
            blob.reshape(*shape[:2], *size)
        if self.own_indices:
            self.memory.reshape(*shape[:2], *size)
        if self.leaves_out_pad:
            gains = (self._gain(axis, *pair) for axis, pair in enumerate(zip(shape[2:], size, strict=True)))
            self.gain = self.engine.from_numpy(functools.reduce(np.multiply.outer, gains))

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*top[1:], *([self.memory] if self.own_indices else [])]

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if self.method == MAX and len(top) == 2:
            self.engine.max_pool_with_indices(x, y, top[1].data, self.windows)
        elif self.method == MAX:
            memory = self.memory.data if self.context.saves_for_backward else None
            self.engine.max_pool_forward(x, y, memory, self.windows)
        elif self.method == AVE:
            self.engine.average_pool_forward(x, y, self.windows)
            if self.leaves_out_pad:
                y *= self.gain
        elif self.noise:
            if self.context.may_change():
                self.dice = self.engine.from_numpy(self.noise.uniform(y.shape))
            self.engine.stochastic_pool_forward(x, y, self.memory.data, self.dice, self.windows)
        else:
            self.engine.stochastic_pool_test(x, y, self.windows)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dy, dx = top[0].diff, bottom[0].diff
        if self.method == AVE:
            self.engine.average_pool_backward(dy * self.gain if self.leaves_out_pad else dy, dx, self.windows)
        elif len(top) == 2:  # a script may have changed the indices
            self.engine.scatter_to_plane(dy, top[1].data, dx)
        elif self.method == MAX:
            self.engine.max_pool_backward(dy, self.memory.data, dx, self.windows)
        elif self.noise:
            self.engine.index_backward(dy, self.memory.data, dx, self.windows)
        else:
            raise self.error("pool: STOCHASTIC has a gradient in phase TRAIN only")

    def _gain(self, axis: int, n: int, count: int) -> np.ndarray:
        """For each window along an axis its length with padding over that without."""
        w = self.windows
        starts = np.arange(count) * w.stride[axis] - w.pad[axis]
        ends = starts + w.kernel[axis]
        padded, inside = np.minimum(ends, n + w.pad[axis]) - starts, np.minimum(ends, n) - np.maximum(starts, 0)
        return (padded / np.maximum(1, inside)).astype(np.float32)

    def _output_size(self, axis: int, n: int) -> int:
        w = self.windows
        steps = (n + 2 * w.pad[axis] - w.kernel[axis]) / w.stride[axis]
        floor = self.param.pooling_param.round_mode == pb.PoolingParameter.FLOOR
        size = (math.floor(steps) if floor else math.ceil(steps)) + 1
        if any(w.pad) and (size - 1) * w.stride[axis] >= n + w.pad[axis]:
            size -= 1
        return size

    def _sizes(self, field: str, stem: str, axes: int) -> tuple[int, ...]:
        """One number an axis: `field` for all of them, its repeated form, or `stem`_h and `stem`_w for two axes."""
        p = self.param.pooling_param
        values, pair = list(getattr(p, f"{field}_3d")), (f"{stem}_h", f"{stem}_w")
        if values and len(values) not in (1, axes):
            raise self.error(f"pooling_param.{field}_3d has {len(values)} numbers for {axes} spatial axes")
        given = [name for name in pair if p.HasField(name)]
        if bool(values) + bool(given) + p.HasField(field) > 1 or len(given) == 1:
            raise self.error(f"give either {field}, or both {pair[0]} and {pair[1]}, or {field}_3d")
        if given:
            if axes != 2:
                raise self.error(f"{pair[0]} and {pair[1]} are for two spatial axes; for {axes} give {field}_3d")
            return getattr(p, pair[0]), getattr(p, pair[1])
        if not values and field == "kernel_size" and not p.HasField(field):
            raise self.error("pooling_param.kernel_size is missing (or kernel_h and kernel_w)")
        values = values or [getattr(p, field)]
        return tuple(values if len(values) == axes else values * axes)
