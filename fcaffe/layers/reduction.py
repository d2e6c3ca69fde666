"""Reduction: the trailing axes of a blob summed up to one value."""

from __future__ import annotations

import math

from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.net.arithmetic import sign
from fcaffe.net.placements import PARTIAL, Placements, Shard, common
from fcaffe.proto import caffe_pb2 as pb

SUM, ASUM, SUMSQ, MEAN = (getattr(pb.ReductionParameter, name) for name in ("SUM", "ASUM", "SUMSQ", "MEAN"))


@register("Reduction")
class Reduction(Layer):
    """top = coeff times the sum, sum of magnitudes, sum of squares or mean of all axes from `axis` on."""

    traits = Traits(bottoms=1, tops=1)

    def rule(self, bottom: list[Blob]) -> Placements:
        p = self.param.reduction_param
        placement = common(bottom, lambda shard: not (p.operation == MEAN and shard.chosen_by))
        is_summed = isinstance(placement, Shard) and placement.axis >= bottom[0].canonical_axis(p.axis)
        return [placement], [PARTIAL if is_summed else placement]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, shape = self.param.reduction_param, bottom[0].shape
        self.axis = bottom[0].canonical_axis(p.axis)
        values: float = math.prod(shape[self.axis :])
        if top[0].placement == PARTIAL and p.operation == MEAN:
            values = self.over_workers(values, bottom[0])
        values = max(1.0, values)  # nothing has the mean 0
        self.coeff = p.coeff / values if p.operation == MEAN else p.coeff
        top[0].reshape(*shape[: self.axis])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        operation, x = self.param.reduction_param.operation, bottom[0].data
        if operation == ASUM:
            x = abs(x)
        elif operation == SUMSQ:
            x = x * x
        top[0].data[...] = self.coeff * x.sum(axis=tuple(range(self.axis, x.ndim)), dtype=self.xp.float64)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        operation, x, dx = self.param.reduction_param.operation, bottom[0].data, bottom[0].diff
        dy = self.coeff * top[0].diff
        dy = dy.reshape(dy.shape + (1,) * (x.ndim - dy.ndim))
        if operation == ASUM:
            self.xp.multiply(dy, sign(x), out=dx)
        elif operation == SUMSQ:
            self.xp.multiply(2 * dy, x, out=dx)
        else:
            dx[...] = dy
