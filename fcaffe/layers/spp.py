"""Spatial pyramid pooling (He, Zhang, Ren and Sun, 2014)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from fcaffe.layers.pooling import STOCHASTIC, Pooling
from fcaffe.net import Blob, Layer, Traits, placements, register
from fcaffe.net.noise import Noise
from fcaffe.proto import caffe_pb2 as pb

MOST_LEVELS = 16  # the last of which has 2^15 x 2^15 bins for each channel


@register("SPP")
class SPP(Layer):
    """top (N, values) = bottom (N, C, H, W) pooled into 1, 4, 16 ... bins per channel, one level after the other.

    With a pyramid_height of 1 the top is (N, C, 1, 1).
    """

    traits = Traits(bottoms=1, tops=1, reads="neither")

    def rule(self, bottom: list[Blob]) -> placements.Placements:
        return (placements.with_noise(placements.first_axis) if self.draws else placements.by_sample)(self, bottom)

    @property
    def draws(self) -> bool:
        return self.param.spp_param.pool == STOCHASTIC and self.phase == pb.TRAIN

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        height = self.param.spp_param.pyramid_height
        if height < 1:
            raise self.error("spp_param.pyramid_height must be positive")
        if height > MOST_LEVELS:
            raise self.error(f"spp_param.pyramid_height is at most {MOST_LEVELS}, not {height}")
        if len(bottom[0].shape) != 4:
            raise self.error(f"needs a bottom of four axes (N, C, H, W), not {bottom[0].shape}")
        if self.draws:  # each level has noise of its own
            self.noise, self.traits = Noise(self, bottom[0]), replace(self.traits, needs_host=True)
        self.built_for: tuple[int, ...] = ()  # H and W
        self.levels: list[Pooling] = []
        self.bins = [Blob(self.xp, (), channels_last=True) for _ in range(height)]  # what each level gives
        self.part = Blob(self.xp, (), channels_last=True)  # whose gradient is one level's part of the bottom's

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if shape[2:] != self.built_for:
            self.levels = [self._make_level(2**level, shape[2:]) for level in range(len(self.bins))]
            for level, bins in zip(self.levels, self.bins, strict=True):
                level.setup(bottom, [bins])
            self.built_for = shape[2:]
        for level, bins in zip(self.levels, self.bins, strict=True):
            level.reshape(bottom, [bins])
        self.part.reshape(*shape)
        self.part.share_data(bottom[0])
        if len(self.levels) == 1:
            top[0].reshape(*self.bins[0].shape)
        else:
            top[0].reshape(shape[0], sum(math.prod(bins.shape[1:]) for bins in self.bins))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        y = top[0].data
        for level, bins, columns in self._each_level():
            level.forward(bottom, [bins])
            y[:, columns] = bins.data.reshape(y[:, columns].shape)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dx, dy = bottom[0].diff, top[0].diff
        dx[...] = 0
        for level, bins, columns in self._each_level():
            bins.diff[...] = dy[:, columns].reshape(bins.shape)
            level.backward([bins], [True], [self.part])
            dx += self.part.diff

    def _each_level(self) -> Iterator[tuple[Pooling, Blob, slice]]:
        """Every level with its bins and the slice of their values in a row of the top."""
        start = 0
        for level, bins in zip(self.levels, self.bins, strict=True):
            end = start + math.prod(bins.shape[1:])
            yield level, bins, slice(start, end)
            start = end

    def _make_level(self, bins: int, size: tuple[int, ...]) -> Pooling:
        """Pooling into bins x bins windows that lie side by side, with half of the padding before each axis."""
        kernel = [math.ceil(n / bins) for n in size]
        pad = [(k * bins - n + 1) // 2 for k, n in zip(kernel, size, strict=True)]
        if any(p >= k for p, k in zip(pad, kernel, strict=True)):
            raise self.error(f"cannot pool {size[0]} x {size[1]} values into {bins}^2 bins; lower pyramid_height")
        param = pb.LayerParameter(name=self.name, type=self.type, phase=self.phase)
        p = param.pooling_param
        p.pool = self.param.spp_param.pool
        p.kernel_h, p.kernel_w = p.stride_h, p.stride_w = kernel
        p.pad_h, p.pad_w = pad
        level = Pooling(param, self.context)
        level.key = f"{self.key}/{bins}"
        return level
