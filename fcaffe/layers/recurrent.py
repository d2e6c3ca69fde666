"""Recurrent layers over sequences of T time steps in N independent streams: what they share, RNN and LSTM.

Caffe unrolls a net inside the layer. Here a loop runs over the time steps, and whatever does not depend on the step
before (the input's share of the gates, the gradients of all weights) is one matrix product over all of them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe.engines.memory import check_room
from fcaffe.net import Array, Blob, Context, Layer, Traits, placements, register
from fcaffe.net.fillers import fill, holds_values
from fcaffe.net.layer import Held


class Recurrent(Layer):
    """Base. Bottoms: x (T, N, ...), cont (T, N) and, if given, a static input (N, ...) that every step sees.

    The state is multiplied by `cont` before a step: 0 begins a sequence, 1 continues one. The last step's state
    carries over to the next batch. N may change from batch to batch, T may not. With `expose_hidden` the first states
    are further bottoms and the last ones further tops, each (1, N, num_output); then nothing carries over, and no
    gradient passes through them.

    Parameters: input weights (gates * num_output, D), their bias, [static weights], then those of `step_parameters`.
    """

    traits = Traits(in_place=False, held=Held.STREAMS, labels=(1,))
    ignores_propagate_down = True
    rule = placements.streams
    states = 1  # arrays (N, num_output) that pass from step to step
    gates = 1  # values per output that a step computes from the input and the state

    def __init__(self, param: Any, context: Context) -> None:
        super().__init__(param, context)
        self.expose_hidden: bool = self.param.recurrent_param.expose_hidden
        self.exposed = self.states if self.expose_hidden else 0
        exposed, bottoms = self.exposed, len(self.param.bottom)
        first_states = range(bottoms - exposed, bottoms)
        self.traits = replace(self.traits, bottoms=(2 + exposed, 3 + exposed), tops=1 + exposed, constants=first_states)

    @classmethod
    def follows_batches(cls, param: Any) -> bool:
        return not param.recurrent_param.expose_hidden

    def has_static(self, bottom: list[Blob]) -> bool:
        """Whether the third bottom is a static input."""
        return len(bottom) == 3 + self.exposed

    def step_parameters(self) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and filler of each parameter that belongs to a step."""
        raise NotImplementedError

    def run_forward(self, gates: Array, states: list[Array], cont: Array, out: Array) -> list[Array]:
        """From the input's share of the gates (T, N, gates * H), which it may overwrite, the first states and cont
        (T, N, 1): fill `out` (T, N, H), return the last states."""
        raise NotImplementedError

    def run_backward(self, dout: Array, cont: Array, dgates: Array) -> None:
        """Write the gradient of the gates, add those of the steps' parameters."""
        raise NotImplementedError

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.recurrent_param
        self.outputs: int = p.num_output
        if self.outputs < 1:
            raise self.error("recurrent_param.num_output must be positive")
        if not self.expose_hidden:
            self.context.workers.run_shards_in_step()  # each carries its state over to its next pass
        self.static = self.has_static(bottom)
        self.time_steps = bottom[0].shape[0] if bottom[0].shape else 0
        self._check_shapes(bottom)
        width = self.gates * self.outputs
        self.add_blob(width, math.prod(bottom[0].shape[2:]), filler=p.weight_filler)
        self.add_blob(width, filler=p.bias_filler)
        if self.static:
            self.add_blob(width, math.prod(bottom[2].shape[1:]), filler=p.weight_filler)
        self.step_blobs = [self.add_blob(*shape, filler=filler) for shape, filler in self.step_parameters()]
        if self.xp is np:
            check_room(4 * width * math.prod(bottom[0].shape[:2]))  # of the gates, before time is spent on their steps
        steps = self.time_steps if holds_values(self.xp) else 1
        for _ in range(1, steps):  # Caffe fills every step's and keeps the first's: the draws are made
            for shape, filler in self.step_parameters():
                fill(np.empty(shape, np.float32), filler, self.context.random)
        self.gate = Blob(self.xp)
        self.carried = Blob(self.xp)  # the state h that each step saw: after cont
        self.first, self.hidden = ([Blob(self.xp) for _ in range(self.states)] for _ in range(2))  # before, after

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._check_shapes(bottom)
        for index, start in ((0, 2), (2, 1)) if self.static else ((0, 2),):
            values = self.blobs[index].shape[1]
            if math.prod(bottom[index].shape[start:]) != values:
                raise self.error(f"has weights for {values} values per stream in {self.named_shapes(bottom)}")
        steps, streams = bottom[0].shape[:2]
        top[0].reshape(steps, streams, self.outputs)
        self.gate.reshape(steps, streams, self.gates * self.outputs)
        self.carried.reshape(steps, streams, self.outputs)
        for blob in [*self.first, *self.hidden, *top[1:]]:
            blob.reshape(1, streams, self.outputs)

    def state_blobs(self) -> dict[str, Blob]:
        return {} if self.expose_hidden else {str(index): blob for index, blob in enumerate(self.hidden)}

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        gates = self.gate.data
        rows = gates.reshape(-1, gates.shape[-1])
        weights, bias = self.blobs[0].data, self.blobs[1].data
        self.engine.inner_product_forward(self._rows(bottom[0], 0), weights, bias, rows, False)
        if self.static:
            gates += self.engine.matmul(self._rows(bottom[2], 2), self.blobs[2].data, transpose_b=True)
        if self.context.may_change():
            for first, hidden in zip(self.first, self.hidden, strict=True):
                first.data[...] = hidden.data
        states = bottom[-self.states :] if self.expose_hidden else self.first
        last = self.run_forward(gates, [blob.data[0] for blob in states], self._cont(bottom), top[0].data)
        for blob, values in zip(top[1:] if self.expose_hidden else self.hidden, last, strict=True):
            blob.data[0] = values

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dgates = self.gate.diff
        self.run_backward(top[0].diff, self._cont(bottom), dgates)
        rows = dgates.reshape(-1, dgates.shape[-1])
        if self.param_propagate_down[1]:
            self.engine.bias_backward(rows, *self.blobs[1].diff_to_add())
        self._backward_input(bottom[0], 0, rows, propagate_down[0])
        if self.static:
            self._backward_input(bottom[2], 2, dgates.sum(axis=0), propagate_down[2])

    def _backward_input(self, x: Blob, index: int, rows: Array, down: bool) -> None:
        """Gradients of an input and of its weights, `blobs[index]`, from those of the gates as rows."""
        weights = self.blobs[index]
        if self.param_propagate_down[index]:
            dweights, add = weights.diff_to_add()
            self.engine.inner_product_backward_weights(self._rows(x, index), rows, dweights, False, add)
        if down:
            dx = self.xp.empty((rows.shape[0], weights.shape[1]), rows.dtype)
            self.engine.inner_product_backward_data(rows, weights.data, dx, False)
            x.diff[...] = dx.reshape(x.shape)

    def add_weight_gradient(self, index: int, x: Array, dy: Array) -> None:
        """Add the gradient of `step_blobs[index]`, weights that took x (T, N, ...) to what has the gradient dy."""
        if self.learns(index):
            x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
            dweights, add = self.step_blobs[index].diff_to_add()
            self.engine.inner_product_backward_weights(x, dy, dweights, False, add)

    def learns(self, index: int) -> bool:
        """Whether the gradient of `step_blobs[index]` is wanted."""
        return self.param_propagate_down[index + len(self.blobs) - len(self.step_blobs)]

    def _rows(self, x: Blob, index: int) -> Array:
        """The input as rows for `blobs[index]`, values in C order, which is the order of the weights."""
        return x.data.reshape(-1, self.blobs[index].shape[1])

    def _cont(self, bottom: list[Blob]) -> Array:
        return bottom[1].data[:, :, None]

    def _check_shapes(self, bottom: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) < 3 or shape[0] < 1:
            raise self.error(f"its input {self.bottom_name(0)} must be (time steps, streams, values ...), not {shape}")
        if shape[0] != self.time_steps:
            raise self.error(f"was set up for {self.time_steps} time steps, but its input now has the shape {shape}")
        if self.static and (len(bottom[2].shape) < 2 or bottom[2].shape[0] != shape[1]):
            raise self.error(f"its static input must be ({shape[1]} streams, values ...): {self.named_shapes(bottom)}")
        states = range(len(bottom) - self.exposed, len(bottom))
        for index, wanted in ({1: shape[:2]} | dict.fromkeys(states, (1, shape[1], self.outputs))).items():
            if bottom[index].shape != wanted:
                raise self.error(f"{self.bottom_name(index)} must have the shape {wanted}, not {bottom[index].shape}")

    def macs(self, bottom: list[Blob], top: list[Blob]) -> int:
        steps, streams = bottom[0].shape[:2]
        each_step = [self.blobs[0], *(blob for blob in self.step_blobs if len(blob.shape) == 2)]
        once = self.blobs[2].count if self.static else 0
        return streams * (steps * sum(blob.count for blob in each_step) + once)


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


def _split_gates(gates: Array) -> list[Array]:
    """Views (..., H) of gates (..., 4H): input, forget, output, candidate."""
    size = gates.shape[-1] // 4
    return [gates[..., part * size : (part + 1) * size] for part in range(4)]


def unit_forward(xp: Any, gates: Array, c_prev: Array, cont: Array, c: Array, tanh_c: Array, h: Array) -> None:
    """One step: c = f * cont * c_prev + i * g, h = o * tanh(c). The gates are activated in place."""
    i, f, o, g = _split_gates(gates)
    sigmoids = gates[..., : 3 * c.shape[-1]]
    xp.negative(sigmoids, out=sigmoids)
    xp.exp(sigmoids, out=sigmoids)
    sigmoids += 1
    xp.reciprocal(sigmoids, out=sigmoids)
    xp.tanh(g, out=g)
    f *= cont
    xp.multiply(f, c_prev, out=c)
    c += i * g
    xp.tanh(c, out=tanh_c)
    xp.multiply(o, tanh_c, out=h)


def unit_backward(gates: Array, c_prev: Array, tanh_c: Array, dc: Array, dh: Array, dgates: Array) -> Array:
    """From activated gates: write the gradient of the gates before activation, return that of c_prev.

    The forget gate counts as a plain sigmoid also where `cont` is a fraction, as in Caffe.
    """
    i, f, o, g = _split_gates(gates)
    di, df, do, dg = _split_gates(dgates)
    dc = dc + dh * o * (1 - tanh_c * tanh_c)
    di[...] = dc * g * i * (1 - i)
    df[...] = dc * c_prev * f * (1 - f)
    do[...] = dh * tanh_c * o * (1 - o)
    dg[...] = dc * i * (1 - g * g)
    return dc * f


@register("LSTM")
class LSTM(Recurrent):
    """top (T, N, H) = the h of every step; states h and c; steps' parameter: hidden weights (4H, H)."""

    states = 2
    gates = 4

    def step_parameters(self) -> list[tuple[tuple[int, ...], Any]]:
        return [((4 * self.outputs, self.outputs), self.param.recurrent_param.weight_filler)]

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.cell = Blob(self.xp)  # c before the first step, then after each
        self.tanh_c = Blob(self.xp)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        steps, streams = bottom[0].shape[:2]
        self.cell.reshape(steps + 1, streams, self.outputs)
        self.tanh_c.reshape(steps, streams, self.outputs)

    def run_forward(self, gates: Array, states: list[Array], cont: Array, out: Array) -> list[Array]:
        weights, carried, tanh_c, c = self.step_blobs[0].data, self.carried.data, self.tanh_c.data, self.cell.data
        h, c[0] = states
        for t in range(self.time_steps):
            self.xp.multiply(h, cont[t], out=carried[t])
            gates[t] += self.engine.matmul(carried[t], weights, transpose_b=True)
            unit_forward(self.xp, gates[t], c[t], cont[t], c[t + 1], tanh_c[t], out[t])
            h = out[t]
        return [h, c[-1]]

    def run_backward(self, dout: Array, cont: Array, dgates: Array) -> None:
        weights, gates, c, tanh_c = self.step_blobs[0].data, self.gate.data, self.cell.data, self.tanh_c.data
        dh, dc = self.xp.zeros_like(dout[0]), self.xp.zeros_like(dout[0])  # nothing comes from the next batch
        for t in reversed(range(self.time_steps)):
            dh += dout[t]
            dc = unit_backward(gates[t], c[t], tanh_c[t], dc, dh, dgates[t])
            dh = self.engine.matmul(dgates[t], weights) * cont[t]
        self.add_weight_gradient(0, self.carried.data, dgates)


@register("LSTMUnit")
class LSTMUnit(Layer):
    """One step of an LSTM. Bottoms: c_prev (1, N, H), gates (1, N, 4H), cont (1, N). Tops: c and h, (1, N, H)."""

    traits = Traits(bottoms=3, tops=2, in_place=False, labels=(2,), reads="bottoms")
    rule = placements.between(lambda layer, x: [0, 2])
    ignores_propagate_down = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.activated = Blob(self.xp)
        self.tanh_c = Blob(self.xp)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        fits = len(shape) == 3 and shape[0] == 1 and bottom[1].shape == (1, shape[1], 4 * shape[2])
        if not fits or bottom[2].shape != shape[:2]:
            raise self.error(
                f"takes a state (1, N, H), gates (1, N, 4 H) and sequence indicators (1, N), not "
                f"{self.named_shapes(bottom)}"
            )
        for blob in (*top, self.tanh_c):
            blob.reshape(*shape)
        self.activated.reshape(*bottom[1].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        c_prev, gates, cont = (blob.data for blob in bottom)
        activated = self.activated.data
        activated[...] = gates
        unit_forward(self.xp, activated, c_prev, cont[:, :, None], top[0].data, self.tanh_c.data, top[1].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dgates, (dc, dh) = self.activated.diff, (blob.diff for blob in top)
        dc_prev = unit_backward(self.activated.data, bottom[0].data, self.tanh_c.data, dc, dh, dgates)
        for blob, values, down in zip(bottom, (dc_prev, dgates), propagate_down, strict=False):
            if down:
                blob.diff[...] = values
