"""Long short-term memory (Hochreiter and Schmidhuber, 1997), as Caffe has it: the layer, and one step of it."""

from __future__ import annotations

from typing import Any

from fcaffe.layers.recurrent import Recurrent
from fcaffe.net import Array, Blob, Layer, Traits, placements, register


def split(gates: Array) -> list[Array]:
    """Views (..., H) of gates (..., 4H): input, forget, output, candidate."""
    size = gates.shape[-1] // 4
    return [gates[..., part * size : (part + 1) * size] for part in range(4)]


def unit_forward(xp: Any, gates: Array, c_prev: Array, cont: Array, c: Array, tanh_c: Array, h: Array) -> None:
    """One step: c = f * cont * c_prev + i * g, h = o * tanh(c). The gates are activated in place."""
    i, f, o, g = split(gates)
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
    i, f, o, g = split(gates)
    di, df, do, dg = split(dgates)
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

    traits = Traits(bottoms=3, tops=2, in_place=False, labels=(2,))
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
