"""The fully connected layer."""

from __future__ import annotations

import math

from fcaffe.layers.activations import is_plain_relu
from fcaffe.net.blob import Array, Blob
from fcaffe.net.fillers import fill_blob
from fcaffe.net.layer import Half, Layer, register


@register("InnerProduct")
class InnerProduct(Layer):
    """top (M, num_output) = bottom, flattened from `axis` on to (M, K), times weights (num_output, K) plus bias.

    With `transpose` the weights are (K, num_output). The axes before `axis` stay as they are.
    """

    bottoms = 1
    tops = 1
    half = Half.ANY
    reshapes_by_shape = True
    repeatable = True
    drops_bottom = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.absorbs_backward = self.engine.fuses_relu_backward
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

    def absorbs(self, behind: list[Layer]) -> int:
        """A ReLU, where that comes with the bias."""
        fuses = self.absorbs_backward and len(self.blobs) > 1 and self.axis == 1
        return int(fuses and is_plain_relu(behind[0]))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.inner_product_param
        bias = self.blobs[1].data if p.bias_term and not self.followers else None
        y = top[0].data
        rows = y.reshape(-1, p.num_output)
        self.engine.inner_product_forward(self._rows(bottom[0].data), self.blobs[0].data, bias, rows, p.transpose)
        if self.followers:
            self.engine.add_bias(rows, self.blobs[1].data, relu=True)
        if y.ndim > 3:  # as below
            y[...] = rows.reshape(y.shape)

    def read_by_backward(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*(bottom if self.param_propagate_down[0] else []), *(top if self.leads else [])]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        p = self.param.inner_product_param
        dy = top[0].diff.reshape(-1, p.num_output)
        learns_bias = p.bias_term and self.param_propagate_down[1]
        if self.followers:
            dbias, add = self.blobs[1].diff_to_add() if learns_bias else (None, False)
            self.engine.relu_bias_backward(top[0].data, dy, dy, dbias, add)
        if self.param_propagate_down[0]:
            x = self._rows(bottom[0].data)
            dweights, add = self.blobs[0].diff_to_add()
            self.engine.inner_product_backward_weights(x, dy, dweights, p.transpose, add)
        if learns_bias and not self.followers:
            self.engine.bias_backward(dy, *self.blobs[1].diff_to_add())
        if propagate_down[0]:
            dx = bottom[0].diff
            in_place = dx.flags.c_contiguous
            rows = dx.reshape(-1, self.inputs) if in_place else self.xp.empty((len(dy), self.inputs), dx.dtype)
            self.engine.inner_product_backward_data(dy, self.blobs[0].data, rows, p.transpose)
            if not in_place:
                self.engine.copy(rows.reshape(dx.shape), dx)

    def _rows(self, x: Array) -> Array:
        """(M, K) in C order, which is the order of the weights."""
        if x.flags.c_contiguous:
            return x.reshape(-1, self.inputs)
        rows = self.xp.empty(x.shape, x.dtype)
        self.engine.copy(x, rows)
        return rows.reshape(-1, self.inputs)

    def macs(self, bottom: list[Blob], top: list[Blob]) -> int:
        """Multiply-adds of one forward pass."""
        return top[0].count * self.inputs
