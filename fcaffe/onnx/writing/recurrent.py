"""LSTM and RNN layers in ONNX, unrolled as in Caffe, since ONNX's LSTM has no indicators of sequence starts.

The initial state is 0 in each run of the graph, unless it is a bottom.
"""

from __future__ import annotations

import math

import numpy as np

from fcaffe.onnx.writing.graph import Step, writes

GATES = [0, 2, 1, 3]  # Caffe's order, input, forget, output, candidate, of ONNX's input, output, forget, candidate


@writes("LSTM")
def lstm(step: Step) -> list[str]:
    gates, conts, (h, c) = _begin(step)
    weights, size, outs = step.blobs[-1], step.tops[0][2], []
    for gate, cont in zip(gates, conts, strict=True):
        carried = step.op("Mul", h, cont)
        c, h = _unit(step, step.op("Gemm", carried, weights, gate, transB=1), c, cont, size, axis=1)
        outs.append(h)
    return _end(step, outs, [h, c])


@writes("RNN")
def rnn(step: Step) -> list[str]:
    gates, conts, (h,) = _begin(step)
    hidden, output, output_bias = step.blobs[-3:]
    outs = []
    for gate, cont in zip(gates, conts, strict=True):
        h = step.op("Tanh", step.op("Gemm", step.op("Mul", h, cont), hidden, gate, transB=1))
        outs.append(step.op("Tanh", step.op("Gemm", h, output, output_bias, transB=1)))
    return _end(step, outs, [h])


@writes("LSTMUnit")
def lstm_unit(step: Step) -> list[str]:
    cont = step.reshape(step.inputs[2], step.bottoms[2], (*step.bottoms[2], 1))
    return list(_unit(step, step.inputs[1], step.x, cont, step.tops[0][2], axis=2))


def _unit(step: Step, gates: str, c: str, cont: str, size: int, axis: int) -> tuple[str, str]:
    """The next c and h. `gates` are the input, forget and output gates, and the candidate."""
    i, f, o, g = step.split(gates, [size] * 4, axis)
    i, f, o = (step.op("Sigmoid", gate) for gate in (i, f, o))
    remembered = step.op("Mul", step.op("Mul", f, cont), c)
    c = step.op("Add", remembered, step.op("Mul", i, step.op("Tanh", g)))
    return c, step.op("Mul", o, step.op("Tanh", c))


def _begin(step: Step) -> tuple[list[str], list[str], list[str]]:
    """For each time step the gates of the input (N, gates * H) and the indicators (N, 1), and the initial states."""
    step.layer_has(recurrent_param="num_output expose_hidden")
    layer = step.layer
    (steps, streams, *rest), size = step.bottoms[0], layer.outputs
    width = layer.gates * size
    x = step.reshape(step.x, step.bottoms[0], (steps * streams, math.prod(rest)))
    gates = step.op("Gemm", x, *step.blobs[:2], transB=1)
    if layer.static:
        rows = (streams, math.prod(step.bottoms[2][1:]))
        fixed = step.op("Gemm", step.reshape(step.inputs[2], step.bottoms[2], rows), step.blobs[2], transB=1)
        each = step.reshape(gates, (steps * streams, width), (steps, streams, width))
        gates = step.reshape(step.op("Add", each, fixed), (steps, streams, width), (steps * streams, width))
    conts = step.reshape(step.inputs[1], step.bottoms[1], (steps * streams, 1))
    if layer.expose_hidden:
        states = [step.reshape(name, (1, streams, size), (streams, size)) for name in step.inputs[-layer.states :]]
    else:
        states = [step.array(np.zeros((streams, size)), "state")] * layer.states
    if steps == 1:
        return [gates], [conts], states
    return step.split(gates, [streams] * steps), step.split(conts, [streams] * steps), states


def _end(step: Step, outs: list[str], states: list[str]) -> list[str]:
    tops = zip([step.op("Concat", *outs, axis=0), *states], step.tops, strict=False)
    return [step.op("Reshape", values, step.integers(shape, "shape")) for values, shape in tops]
