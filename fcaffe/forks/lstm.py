"""Lstm: long short-term memory as junhyukoh's fork has it, older than Caffe's LSTM."""

from __future__ import annotations

import math
from typing import Any

from fcaffe.layers.recurrent import unit_backward, unit_forward
from fcaffe.net import Array, Blob, Layer, Traits, register
from fcaffe.net.layer import Held
from fcaffe.proto import forks


@register("Lstm")
class Lstm(Layer):
    """top (T * N, num_output) = the h of every step of N = `batch_size` sequences.

    A bottom x (T, N, I) without `batch_size` is that of the OCR fork, whose top is (T, N, num_output).

    Bottoms: x (T * N, ...), time by time, and, if given, marks (T * N,): 0 begins a sequence, anything else continues
    one. Without marks each pass starts from zero; with marks the state carries over to the next pass and is part of
    snapshots. T may change from pass to pass. `clipping_threshold` limits the gradients of the gates before their
    activation. Parameters: weights of the input (4 H, I) and of the state (4 H, H), bias (4 H).

    The values are those of the fork's GPU code, with its quirks: the mark of time t and sequence n is at t + n. The
    gradient of the weights of the state ignores marks, and of the state carried over it has only sequence 0.
    """

    fork = forks.LSTM
    traits = Traits(bottoms=(1, 2), tops=1, in_place=False, held=Held.STREAMS, labels=(1,))

    @classmethod
    def follows_batches(cls, param: Any) -> bool:
        return len(param.bottom) == 2

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.lstm_param
        self.outputs, self.streams, self.has_marks = p.num_output, p.batch_size, len(bottom) == 2
        self.axes = 1  # of time and sequences
        if len(bottom[0].shape) == 3 and not p.HasField("batch_size"):
            self.fork, self.axes, self.streams = forks.OCR, 2, bottom[0].shape[1]
        if self.outputs < 1 or self.streams < 1:
            raise self.error("lstm_param needs num_output and batch_size, both at least 1")
        if self.has_marks:
            self.context.workers.run_shards_in_step()  # each carries its state over to its next pass
        width = 4 * self.outputs
        self.add_blob(width, math.prod(bottom[0].shape[self.axes :]), filler=p.weight_filler)
        self.add_blob(width, self.outputs, filler=p.weight_filler)
        self.add_blob(width, filler=p.bias_filler)
        shape = 1, self.streams, self.outputs
        self.first, self.last = ([Blob(self.xp, shape) for _ in "hc"] for _ in range(2))  # the state around a pass
        self.gates, self.cell, self.tanh_c, self.previous = (Blob(self.xp) for _ in range(4))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape, values = bottom[0].shape, self.blobs[0].shape[1]
        rows = math.prod(shape[: self.axes])
        if self.axes == 2 and shape[1] != self.streams:
            self.streams = shape[1]
            for blob in (*self.first, *self.last):
                blob.reshape(1, self.streams, self.outputs)
        if len(shape) < 2 or rows % max(1, self.streams) or math.prod(shape[self.axes :]) != values:
            raise self.error(
                f"needs rows of {values} values for steps of batch_size: {self.streams} sequences: "
                f"{self.named_shapes(bottom[:1])}"
            )
        if self.has_marks and bottom[1].count != rows:
            raise self.error(f"needs a mark for each step of each sequence: {self.named_shapes(bottom)}")
        steps = rows // max(1, self.streams)
        top[0].reshape(*shape[: self.axes], self.outputs)
        self.gates.reshape(steps, self.streams, 4 * self.outputs)
        self.cell.reshape(steps + 1, self.streams, self.outputs)  # c before the first step, then after each
        for blob in (self.tanh_c, self.previous):
            blob.reshape(steps, self.streams, self.outputs)

    def state_blobs(self) -> dict[str, Blob]:
        return dict(zip("hc", self.last, strict=True)) if self.has_marks else {}

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        gates, c, tanh_c, previous = (blob.data for blob in (self.gates, self.cell, self.tanh_c, self.previous))
        weights, recurrent, bias = (blob.data for blob in self.blobs)
        self.engine.inner_product_forward(self._rows(bottom[0]), weights, bias, self._flat(gates), False)
        out, marks = top[0].data.reshape(previous.shape), self._marks(bottom)
        if self.has_marks and self.context.may_change():
            for first, last in zip(self.first, self.last, strict=True):
                first.data[...] = last.data
        h, c[0] = (blob.data[0] for blob in self.first)
        previous[:1] = h
        for t in range(len(previous)):
            gates[t] += self.engine.matmul(h, recurrent, transpose_b=True) * marks[t]
            unit_forward(self.xp, gates[t], c[t], marks[t], c[t + 1], tanh_c[t], out[t])
            h = out[t]
        for blob, values in zip(self.last, (h, c[-1]), strict=True):
            blob.data[0] = values
        previous[1:] = out[:-1]
        previous[:1, 1:] = 0  # whose products the fork leaves out of the gradient

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*bottom, self.gates, self.cell, self.tanh_c, self.previous]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        gates, c, tanh_c, previous = (blob.data for blob in (self.gates, self.cell, self.tanh_c, self.previous))
        dgates, dout, marks = self.gates.diff, top[0].diff.reshape(previous.shape), self._marks(bottom)
        threshold = self.param.lstm_param.clipping_threshold
        dh, dc = self.xp.zeros_like(c[0]), self.xp.zeros_like(c[0])
        for t in reversed(range(len(previous))):
            dc = unit_backward(gates[t], c[t], tanh_c[t], dc, dh + dout[t], dgates[t])
            if threshold > 0:
                self.xp.clip(dgates[t], -threshold, threshold, out=dgates[t])
            dh = self.engine.matmul(dgates[t], self.blobs[1].data) * marks[t]
        rows = self._flat(dgates)
        for index, inputs in enumerate((self._rows(bottom[0]), self._flat(previous))):
            if self.param_propagate_down[index]:
                dweights, add = self.blobs[index].diff_to_add()
                self.engine.inner_product_backward_weights(inputs, rows, dweights, False, add)
        if self.param_propagate_down[2]:
            self.engine.bias_backward(rows, *self.blobs[2].diff_to_add())
        if propagate_down[0]:
            dx = self.xp.empty((len(rows), self.blobs[0].shape[1]), rows.dtype)
            self.engine.inner_product_backward_data(rows, self.blobs[0].data, dx, False)
            bottom[0].diff[...] = dx.reshape(bottom[0].shape)

    def _rows(self, x: Blob) -> Array:
        """The input as rows in C order, which is the order of the weights."""
        return x.data.reshape(x.count // self.blobs[0].shape[1], self.blobs[0].shape[1])

    def _flat(self, values: Array) -> Array:
        """Values (T, N, n) of each step and sequence as (T * N, n)."""
        return values.reshape(values.shape[0] * values.shape[1], values.shape[2])

    def _marks(self, bottom: list[Blob]) -> Array:
        """(T, N, 1) float32: 1 where a step continues a sequence, else 0."""
        shape = (*self.previous.shape[:2], 1)
        steps, sequences = (self.xp.arange(count) for count in shape[:2])
        if self.has_marks:
            marks = bottom[1].data.reshape(-1)[steps[:, None] + sequences] != 0
        else:
            marks = (steps > 0)[:, None] & (sequences >= 0)
        return marks.astype(self.xp.float32).reshape(shape)

    def macs(self, bottom: list[Blob], top: list[Blob]) -> int:
        """Multiply-adds of the matrix products of one forward pass."""
        return top[0].count // self.outputs * (self.blobs[0].count + self.blobs[1].count)
