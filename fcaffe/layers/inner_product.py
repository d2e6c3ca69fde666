"""The fully connected layer."""

from __future__ import annotations

import math
from typing import Any

from fcaffe import log
from fcaffe.net import Blob, Half, Layer, Traits, register
from fcaffe.net.layer import is_layer
from fcaffe.net.placements import PARTIAL, REPLICATE, Local, Partial, Placement, Placements, Replicate, Shard, before
from fcaffe.proto import forks

_rule = before(lambda layer, x: x.canonical_axis(layer.param.inner_product_param.axis))


@register("InnerProduct")
class InnerProduct(Layer):
    """top (M, num_output) = bottom, flattened from `axis` on to (M, K), times weights (num_output, K) plus bias.

    With `transpose` the weights are (K, num_output). With `normalize`, of caffe-windows, each pass scales the rows of
    the weights to length 1; their gradient ignores that, as there.

    Where that moves fewer bytes, each of several workers has only a part of the weights (`Context.split_below`). Split
    by outputs, it computes its part of the outputs of the whole batch. Split by inputs, it takes its part of them, and
    the workers' tops add up.
    """

    traits = Traits(
        bottoms=1,
        tops=1,
        half=Half.ANY,
        reads="bottoms",
        reshapes_by_shape=True,
        reads_before_writing=True,
    )

    @classmethod
    def follows_batches(cls, param: Any) -> bool:
        return bool(param.inner_product_param.normalize)

    def rule(self, bottom: list[Blob]) -> Placements:
        p, context, placement = self.param.inner_product_param, self.context, bottom[0].placement
        axis, shape = bottom[0].canonical_axis(p.axis), context.whole_shape(bottom[0])
        rows, inputs, workers = math.prod(shape[:axis]), math.prod(shape[axis:]), context.workers.size
        worth = context.split_below * inputs * p.num_output
        is_whole = not is_layer(self, InnerProduct) or p.normalize or any(spec.name for spec in self.param.param)
        if is_whole or isinstance(placement, Replicate | Local) or placement.chosen_by:
            return _rule(self, bottom)
        if isinstance(placement, Shard) and placement.axis == axis and rows * p.num_output < worth:
            return [placement], [PARTIAL]
        if p.num_output >= workers and rows * (inputs + p.num_output / workers) < worth:
            return [REPLICATE], [Shard(axis, p.num_output)]
        return _rule(self, bottom)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.inner_product_param
        if p.num_output < 1:
            raise self.error("inner_product_param.num_output must be positive")
        if p.normalize:
            self.fork = forks.WINDOWS
            self.context.workers.run_shards_in_step()  # all of them read the weights after they have length 1
            if p.transpose:
                raise self.error("normalize: true does not go with transpose: true")
        self.axis = bottom[0].canonical_axis(p.axis)
        self.inputs, self.outputs = math.prod(bottom[0].shape[self.axis :]), p.num_output
        inputs = math.prod(self.context.whole_shape(bottom[0])[self.axis :])
        source, target, workers = bottom[0].placement, top[0].placement, self.context.workers
        parts: Placement = REPLICATE
        of_bias: Placement = REPLICATE
        if isinstance(target, Shard) and target.axis == self.axis:
            self.outputs = workers.part(p.num_output).count
            parts, of_bias = Shard(int(p.transpose), p.num_output), Shard(0, p.num_output)
        adds_up = isinstance(source, Shard) and isinstance(target, Partial)
        if isinstance(source, Shard) and adds_up:
            parts = Shard(1 - int(p.transpose), source.samples)
        if parts != REPLICATE:
            way = "inputs" if adds_up else "outputs"
            log.info(f'The weights of layer "{self.name}" are split by {way} over {workers.size} workers')
        shape = (inputs, p.num_output) if p.transpose else (p.num_output, inputs)
        self.add_blob(*shape, filler=p.weight_filler, placement=parts)
        if p.bias_term:
            self.add_blob(p.num_output, filler=p.bias_filler, placement=of_bias)
        self.adds_bias = p.bias_term and not (adds_up and workers.rank)  # one of tops that add up has the bias

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if math.prod(shape[self.axis :]) != self.inputs:
            raise self.error(f"has weights for {self.inputs} inputs, but its bottom has the shape {shape}")
        top[0].reshape(*shape[: self.axis], self.outputs)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, y = self.param.inner_product_param, top[0].data
        x, rows = self.engine.flattened(bottom[0].data, self.inputs), y.reshape(-1, self.outputs)
        bias = self.blobs[1].data if self.adds_bias else None
        if p.normalize:
            self.once(self.normalize_weights, read_now=True)
        self.engine.inner_product_forward(x, self.blobs[0].data, bias, rows, p.transpose)
        if y.ndim > 3:  # of channels-last memory `rows` is a copy
            y[...] = rows.reshape(y.shape)

    def normalize_weights(self) -> None:
        weights = self.blobs[0].mutable_data
        weights /= self.xp.sqrt((weights * weights).sum(axis=1, keepdims=True) + self.xp.float32(1e-6))

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return bottom if self.param_propagate_down[0] else []

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        p = self.param.inner_product_param
        dy, weights = top[0].diff.reshape(-1, self.outputs), self.blobs[0].data
        if self.adds_bias and self.param_propagate_down[1]:
            self.engine.bias_backward(dy, *self.blobs[1].diff_to_add())
        if self.param_propagate_down[0]:
            x = self.engine.flattened(bottom[0].data, self.inputs)
            dweights, add = self.blobs[0].diff_to_add()
            self.engine.inner_product_backward_weights(x, dy, dweights, p.transpose, add)
        if propagate_down[0]:
            dx = bottom[0].diff
            rows = (dx if dx.flags.c_contiguous else self.engine.flat_memory(dx)).reshape(-1, self.inputs)
            self.engine.inner_product_backward_data(dy, weights, rows, p.transpose)
            if not dx.flags.c_contiguous:
                self.engine.copy(rows.reshape(dx.shape), dx)

    def macs(self, bottom: list[Blob], top: list[Blob]) -> int:
        return top[0].count * self.inputs
