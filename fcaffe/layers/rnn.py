"""The plain recurrent network (Elman, 1990), as Caffe has it."""

from __future__ import annotations

from typing import Any

from fcaffe.layers.recurrent import Recurrent
from fcaffe.net import Array, Blob, register


@register("RNN")
class RNN(Recurrent):
    """h = tanh(input's share + hidden weights * h of the step before), top (T, N, H) = tanh(output weights * h + bias).

    State: h. Steps' parameters: hidden weights (H, H), output weights (H, H), output bias (H).
    """

    def step_parameters(self) -> list[tuple[tuple[int, ...], Any]]:
        p, size = self.param.recurrent_param, self.outputs
        return [((size, size), p.weight_filler), ((size, size), p.weight_filler), ((size,), p.bias_filler)]

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.output = Blob(self.xp)  # what the top held before layers that work in place on it

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.output.reshape(*top[0].shape)

    def run_forward(self, gates: Array, states: list[Array], cont: Array, out: Array) -> list[Array]:
        xp, carried, output = self.xp, self.carried.data, self.output.data
        hidden_weights, output_weights, output_bias = (blob.data for blob in self.step_blobs)
        h = states[0]
        for t in range(self.time_steps):
            xp.multiply(h, cont[t], out=carried[t])
            h = gates[t]
            h += self.engine.matmul(carried[t], hidden_weights, transpose_b=True)
            xp.tanh(h, out=h)
        rows = gates.reshape(-1, self.outputs)  # now the h of every step
        self.engine.inner_product_forward(rows, output_weights, output_bias, output.reshape(rows.shape), False)
        xp.tanh(output, out=output)
        out[...] = output
        return [h]

    def run_backward(self, dout: Array, cont: Array, dgates: Array) -> None:
        hidden, output = self.gate.data, self.output.data
        hidden_weights, output_weights, _ = (blob.data for blob in self.step_blobs)
        doutput = dout * (1 - output * output)
        dhidden = self.engine.matmul(doutput.reshape(-1, self.outputs), output_weights).reshape(hidden.shape)
        for t in reversed(range(self.time_steps)):
            self.xp.multiply(dhidden[t], 1 - hidden[t] * hidden[t], out=dgates[t])
            if t:
                dhidden[t - 1] += self.engine.matmul(dgates[t], hidden_weights) * cont[t]
        self.add_weight_gradient(0, self.carried.data, dgates)
        self.add_weight_gradient(1, hidden, doutput)
        if self.learns(2):
            self.step_blobs[2].diff[...] += doutput.sum(axis=(0, 1))
