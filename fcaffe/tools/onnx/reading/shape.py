"""Operators that change the shape of a blob, or nothing."""

from __future__ import annotations

import math

from fcaffe.tools.onnx.reading.folding import reshaped
from fcaffe.tools.onnx.reading.graph import Step, Value, reads

_FLOATS, _INTEGERS = (1, 10, 11, 16), (6, 7)  # numbers of types in ONNX


@reads("Identity", "CastLike")
def identity(step: Step) -> Value:
    return step.x


@reads("Dropout")
def dropout(step: Step) -> Value:
    ratio = float(step.weights(1, "ratio").reshape(-1)[0]) if step.has(1) else step.attribute("ratio", 0.5)
    return step.layer("Dropout", step.x, dropout_param={"dropout_ratio": ratio}) if 0 < ratio < 1 else step.x


@reads("Cast")
def cast(step: Step) -> Value:
    whole = step.x.maker.kind in ("Input", "ArgMax", "Threshold")
    if step.attribute("to", 0) not in (_FLOATS + _INTEGERS if whole else _FLOATS):
        raise step.refuse("it rounds values to whole numbers", "compute in float32 there")
    return step.x


@reads("Reshape")
def reshape(step: Step) -> Value:
    return step.reshape(step.x, reshaped(step, step.x.shape, step.list_of(1, "shape") or []))


@reads("Flatten")
def flatten(step: Step) -> Value:
    shape, axis = step.x.shape, step.attribute("axis", 1)
    axis += len(shape) * (axis < 0)
    return step.reshape(step.x, (math.prod(shape[:axis]), math.prod(shape[axis:])))


@reads("Squeeze")
def squeeze(step: Step) -> Value:
    shape, axes = step.x.shape, step.list_of(1, "axes")
    single = {axis for axis, n in enumerate(shape) if n == 1}
    gone = single if axes is None else single & {step.axis(axis, shape) for axis in axes}
    return step.reshape(step.x, tuple(n for axis, n in enumerate(shape) if axis not in gone))


@reads("Unsqueeze")
def unsqueeze(step: Step) -> Value:
    axes, shape = step.list_of(1, "axes") or [], list(step.x.shape)
    for axis in sorted(axis % (len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
    return step.reshape(step.x, tuple(shape))
