"""The fully connected layer."""

from __future__ import annotations

import math

from fcaffe.net import Blob, Half, Layer, Traits, register
from fcaffe.net.fillers import fill_blob


@register("InnerProduct")
class InnerProduct(Layer):
    """top (M, num_output) = bottom, flattened from `axis` on to (M, K), times weights (num_output, K) plus bias.

    With `transpose` the weights are (K, num_output). The axes before `axis` stay as they are.
    """

    traits = Traits(
        bottoms=1,
        tops=1,
        half=Half.ANY,
        reshapes_by_shape=True,
        repeatable=True,
        reads_before_writing=True,
    )

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.inner_product_param
        if p.num_output < 1:
            raise self.error("inner_product_param.num_output must be positive")
        self.axis = bottom[0].canonical_axis(p.axis)
        self.inputs = math.prod(bottom[0].shape[self.axis :])
        shape = (self.inputs, p.num_output) if p.transpose else (p.num_output, self.inputs)
        fill_blob(self.add_blob(*shape), p.weight_filler, self.context.random)
        if p.bias_term:
            fill_blob(self.add_blob(p.num_output), p.bias_filler, self.context.random)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if math.prod(shape[self.axis :]) != self.inputs:
            raise self.error(f"has weights for {self.inputs} inputs, but its bottom has the shape {shape}")
        top[0].reshape(*shape[: self.axis], self.param.inner_product_param.num_output)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, y = self.param.inner_product_param, top[0].data
        x, rows = self.engine.flattened(bottom[0].data, self.inputs), y.reshape(-1, p.num_output)
        bias = self.blobs[1].data if p.bias_term else None
        self.engine.inner_product_forward(x, self.blobs[0].data, bias, rows, p.transpose)
        if y.ndim > 3:  # of channels-last memory `rows` is a copy
            y[...] = rows.reshape(y.shape)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return bottom if self.param_propagate_down[0] else []

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        p = self.param.inner_product_param
        dy = top[0].diff.reshape(-1, p.num_output)
        if self.param_propagate_down[0]:
            x = self.engine.flattened(bottom[0].data, self.inputs)
            if (factors := self.context.factors.get(self.name)) and (share := self.context.share):
                factors.take(self.context.workers.rows(share), x, dy)
                self.blobs[0].diff_storage.mark_written()  # later, for all samples of the batch
            else:
                dweights, add = self.blobs[0].diff_to_add()
                self.engine.inner_product_backward_weights(x, dy, dweights, p.transpose, add)
        if p.bias_term and self.param_propagate_down[1]:
            self.engine.bias_backward(dy, *self.blobs[1].diff_to_add())
        if propagate_down[0]:
            dx = bottom[0].diff
            in_place = dx.flags.c_contiguous
            rows = dx.reshape(-1, self.inputs) if in_place else self.engine.flat_memory(dx).reshape(-1, self.inputs)
            self.engine.inner_product_backward_data(dy, self.blobs[0].data, rows, p.transpose)
            if not in_place:
                self.engine.copy(rows.reshape(dx.shape), dx)

    def macs(self, bottom: list[Blob], top: list[Blob]) -> int:
        """Multiply-adds of one forward pass."""
        return top[0].count * self.inputs
