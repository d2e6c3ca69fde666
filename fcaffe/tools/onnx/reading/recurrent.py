"""LSTM."""

from __future__ import annotations

import numpy as np

from fcaffe.tools.onnx.reading.graph import Step, Value, reads
from fcaffe.tools.onnx.reading.reorder import chosen

GATES = [0, 2, 1, 3]  # Caffe's order, input, forget, output, candidate, of ONNX's input, output, forget, candidate
_LIMITS = "use nn.LSTM with its defaults"


@reads("LSTM")
def lstm(step: Step) -> list[Value]:
    """Caffe's LSTM for each direction. Its second bottom, the marks, is 0 where a sequence begins."""
    if len(step.x.shape) != 3:
        raise step.error(f"its input has the shape {step.x.shape}")
    if (
        step.attribute("layout", 0)
        or step.attribute("input_forget", 0)
        or "clip" in step.node.attributes
        or step.has(7)
    ):
        raise step.refuse("it has layout, input_forget, clip or peepholes", _LIMITS)
    if step.has(4):
        raise step.refuse("its sequences have different lengths", "run sequences of one length")
    usual = ["Sigmoid", "Tanh", "Tanh"] * 2
    named = step.attribute("activations", usual)
    if [str(name).lower() for name in named] != [name.lower() for name in usual[: len(named)]]:
        raise step.refuse(f"its activations are {named}", _LIMITS)
    weights, hidden = step.weights(1, "weights"), step.weights(2, "weights")
    directions = step.attribute("direction", "forward")
    count = 2 if directions == "bidirectional" else 1
    size = step.attribute("hidden_size", hidden.shape[-1])
    inner = step.x.shape[2]
    if weights.shape != (count, 4 * size, inner) or hidden.shape != (count, 4 * size, size):
        raise step.error(f"its weights of shapes {weights.shape} and {hidden.shape} do not fit {step.x.shape}")
    biases = step.weights(3, "biases") if step.has(3) else np.zeros((count, 8 * size), np.float32)
    if biases.shape != (count, 8 * size):
        raise step.error(f"its biases have the shape {biases.shape}")
    outputs, last = [], []
    for number in range(count):
        bias = biases[number].reshape(2, 4 * size).sum(0)
        backwards = directions == "reverse" or number == 1
        blobs = [_in_caffes_order(one) for one in (weights[number], bias, hidden[number])]
        y, *states = _direction(step, number, blobs, backwards)
        outputs.append(y)
        last.append(states)
    steps, streams = step.x.shape[:2]
    parts = [step.reshape(y, (steps, 1, streams, size)) for y in outputs]
    y = parts[0] if count == 1 else step.layer("Concat", *parts, concat_param={"axis": 1})
    results = [y]
    for both in zip(*last, strict=True):
        results.append(both[0] if count == 1 else step.layer("Concat", *both, concat_param={"axis": 0}))
    return results[: len(step.node.outputs)]


def _in_caffes_order(array: np.ndarray) -> np.ndarray:
    parts = array.reshape(4, len(array) // 4, *array.shape[1:])
    return parts[GATES].reshape(array.shape)


def _direction(step: Step, number: int, blobs: list[np.ndarray], backwards: bool) -> list[Value]:
    """The outputs of one direction in the order of time, and its last states if they are wanted."""
    x = step.x
    steps, streams, size = *x.shape[:2], blobs[2].shape[1]
    order = range(steps)[::-1]
    if backwards:
        x = chosen(step, x, 0, order)
    marks = np.ones((steps, streams), np.float32)
    marks[0] = 0
    bottoms = [x, step.held(marks)]
    exposed = any(step.node.outputs[1:]) or any(_initial(step, index, number) is not None for index in (5, 6))
    if exposed:  # states are bottoms and tops, and a mark of 0 would clear the first ones
        bottoms[1] = step.held(np.ones((steps, streams)))
        for index in (5, 6):
            start = _initial(step, index, number)
            bottoms.append(start if start is not None else step.held(np.zeros((1, streams, size))))
    p = {"num_output": size, **({"expose_hidden": True} if exposed else {})}
    y, *states = step.layers("LSTM", *bottoms, tops=3 if exposed else 1, blobs=blobs, recurrent_param=p)
    return [chosen(step, y, 0, order) if backwards else y, *states]


def _initial(step: Step, index: int, number: int) -> Value | None:
    """The first state of a direction, or None if it is 0."""
    constant = step.constant(index)
    if not step.has(index) or (constant is not None and not constant.any()):
        return None
    value = step.value(index)
    return chosen(step, value, 0, [number])
