"""What is left of some axes: their sum (Reduction), or which values are the largest (ArgMax)."""

from __future__ import annotations

import math
from dataclasses import replace

from fcaffe.layers.c_order import rows_of
from fcaffe.net import ALL_BOTTOMS, Array, Blob, Layer, Traits, register
from fcaffe.net.arithmetic import sign
from fcaffe.net.placements import PARTIAL, Placements, Shard, by_sample, common, replicated
from fcaffe.proto import caffe_pb2 as pb

SUM, ASUM, SUMSQ, MEAN = (getattr(pb.ReductionParameter, name) for name in ("SUM", "ASUM", "SUMSQ", "MEAN"))


@register("Reduction")
class Reduction(Layer):
    """top = coeff times the sum, sum of magnitudes, sum of squares or mean of all axes from `axis` on."""

    traits = Traits(bottoms=1, tops=1)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        is_linear = self.param.reduction_param.operation in (SUM, MEAN)
        self.traits = replace(self.traits, reads="neither" if is_linear else "bottoms")

    def rule(self, bottom: list[Blob]) -> Placements:
        p = self.param.reduction_param
        placement = common(self, bottom, lambda shard: not (p.operation == MEAN and shard.chosen_by))
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
        if operation == SUMSQ:
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


@register("ArgMax")
class ArgMax(Layer):
    """top = the indices of the `top_k` largest values, in falling order; of equal ones the larger index comes first.

    With `axis` they replace that axis; with out_max_val the values are there instead. Without `axis` a whole sample is
    looked at, and the top has the shape (N, 1, top_k), or (N, 2, top_k) with out_max_val: indices, then values; it is
    padded with ones to the bottom's number of axes.
    """

    traits = Traits(bottoms=1, tops=1, labels=ALL_BOTTOMS)

    def rule(self, bottom: list[Blob]) -> Placements:
        p = self.param.argmax_param
        compares_samples = p.HasField("axis") and bottom[0].canonical_axis(p.axis) == 0
        return (replicated if compares_samples else by_sample)(self, bottom)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        waits = self.param.argmax_param.top_k > 1  # for a device that sorts
        self.traits = replace(self.traits, needs_host=waits)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, shape = self.param.argmax_param, bottom[0].shape
        self.axis = bottom[0].canonical_axis(p.axis) if p.HasField("axis") else None
        among = math.prod(shape[1:]) if self.axis is None else shape[self.axis]
        if not 1 <= p.top_k <= among:
            raise self.error(f"top_k must be from 1 to {among}, the number of values to choose from, not {p.top_k}")
        if self.axis is None:
            top[0].reshape(*shape[:1], 2 if p.out_max_val else 1, p.top_k, *(1,) * (len(shape) - 3))
        else:
            top[0].reshape(*shape[: self.axis], p.top_k, *shape[self.axis + 1 :])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, p = self.xp, self.param.argmax_param
        x, y = bottom[0].data, top[0].data
        if self.axis is not None:
            indices = self._indices(x, self.axis)
            y[...] = xp.take_along_axis(x, indices, self.axis) if p.out_max_val else indices
            return
        samples = rows_of(x)
        indices = self._indices(samples, 1)
        y[:, 0] = indices.reshape(y[:, 0].shape)
        if p.out_max_val:
            y[:, 1] = xp.take_along_axis(samples, indices, 1).reshape(y[:, 1].shape)

    def _indices(self, x: Array, axis: int) -> Array:
        """The indices along `axis` of the top_k largest values of x."""
        xp, top_k = self.xp, self.param.argmax_param.top_k
        turned = xp.flip(x, axis)
        if top_k == 1:
            indices = xp.expand_dims(turned.argmax(axis=axis), axis)
        else:
            falling = xp.argsort(-turned, axis=axis, kind="stable")
            indices = falling[(slice(None),) * axis + (slice(top_k),)]
        return x.shape[axis] - 1 - indices
