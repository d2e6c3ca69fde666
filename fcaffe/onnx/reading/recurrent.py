"""LSTM."""

from __future__ import annotations

import numpy as np

from fcaffe.onnx.reading.graph import Step, Value
from fcaffe.onnx.reading.reorder import chosen, joined
from fcaffe.onnx.writing.recurrent import GATES

_BACKWARDS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
_PLAIN = "use nn.LSTM with its defaults"


def lstm(step: Step) -> list[Value]:
    """Caffe's LSTM for each direction."""
    weights, hidden = step.weights(1, "weights"), step.weights(2, "weights")
    directions = _BACKWARDS[step.attribute("direction")]
    (steps, streams, _), size = step.x.shape, step.attribute("hidden_size", hidden.shape[-1])
    functions = ["sigmoid", "tanh", "tanh"] * len(directions)
    if [str(name).lower() for name in step.attribute("activations", functions)] != functions:
        raise step.refuse("it has other activations", _PLAIN)
    if step.has(4) and not np.array_equal(step.weights(4, "lengths of sequences"), [steps] * streams):
        raise step.refuse("it has lengths of sequences", "use sequences of one length")
    if step.has(7) and step.weights(7, "peepholes").any():
        raise step.refuse("it has peepholes", _PLAIN)
    biases = step.weights(3, "biases") if step.has(3) else np.zeros((len(directions), 8 * size))
    if not len(directions) == len(weights) == len(hidden) == len(biases):
        raise step.error(f"its weights are not those of {len(directions)} directions")
    outputs = []
    for number, backwards in enumerate(directions):
        bias = biases[number].reshape(2, 4 * size).sum(0)
        blobs = [one.reshape(4, size, -1)[GATES].reshape(one.shape) for one in (weights[number], bias, hidden[number])]
        outputs.append(_direction(step, number, blobs, backwards))
    outputs = [[step.reshape(y, (steps, 1, streams, size)), *states] for y, *states in outputs]
    return [joined(step, parts, int(index == 0)) for index, parts in enumerate(zip(*outputs, strict=True))]


def _direction(step: Step, number: int, blobs: list[np.ndarray], backwards: bool) -> list[Value]:
    """The outputs of one direction in the order of time, and its last states if they are wanted.

    The second bottom, the marks, is 0 where a sequence begins. States are further bottoms and tops. A mark of 0 would
    clear the first ones.
    """
    (steps, streams, _), size = step.x.shape, blobs[2].shape[1]
    starts = [step.constant(index) for index in (5, 6) if step.has(index)]
    exposed = step.is_read(1) or step.is_read(2) or any(start is None or start.any() for start in starts)
    marks = np.ones((steps, streams))
    marks[0] = int(exposed)
    order = range(steps)[::-1] if backwards else range(steps)
    bottoms = [chosen(step, step.x, 0, order), step.held(marks)]
    for index in (5, 6) if exposed else ():
        given = step.has(index)
        bottoms.append(chosen(step, step.value(index), 0, [number]) if given else step.filled((1, streams, size), 0))
    p = {"num_output": size, **({"expose_hidden": True} if exposed else {})}
    y, *states = step.layers("LSTM", *bottoms, tops=3 if exposed else 1, blobs=blobs, recurrent_param=p)
    return [chosen(step, y, 0, order), *states]
