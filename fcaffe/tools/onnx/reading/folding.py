"""Computes nodes whose inputs are constants, by onnx's reference implementation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.tools.onnx.library import onnx
from fcaffe.tools.onnx.reading.graph import Step
from fcaffe.tools.onnx.reading.load import in_known_type

# Operators whose outputs have at most as many values as their inputs, after these have been repeated to one shape.
_ELEMENTWISE = (
    *("Abs", "Add", "And", "Cast", "Ceil", "Div", "Equal", "Exp", "Floor", "Greater", "GreaterOrEqual", "Identity"),
    *("Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Round"),
    *("Sqrt", "Sub", "Where"),
)
_MOVING = (
    *("Concat", "Flatten", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Slice"),
    *("Split", "Squeeze", "Transpose", "Unsqueeze"),
)


def fold(step: Step) -> list[np.ndarray] | None:
    """The outputs of a node as constants, or None if it needs blobs, or is not folded. Raises NetError."""
    if step.op in ("Shape", "Size") and step.has(0):
        shape = step.known(0).shape
        part = shape[slice(step.attribute("start", 0), step.node.attributes.get("end"))]
        return [np.array(part if step.op == "Shape" else math.prod(shape), np.int64)]
    inputs = [step.net.known[name] if name else None for name in step.node.inputs]
    arrays = [one for one in inputs if isinstance(one, np.ndarray)]
    if step.op == "CastLike" and isinstance(inputs[0], np.ndarray):  # the type of all blobs is float32
        return [inputs[0].astype(np.float32)]
    if len(arrays) < sum(one is not None for one in inputs):
        return None
    count = _count(step, arrays)
    if count is None:
        return None
    step.net.take(count)
    with np.errstate(all="ignore"):
        return [in_known_type(np.asarray(one)) for one in _run(step, inputs)]


def _count(step: Step, arrays: list[np.ndarray]) -> int | None:
    """The largest number of values that the outputs have; None for a node that is not folded."""
    sizes = sum(array.size for array in arrays)
    if step.op == "Constant" or step.op in _MOVING:
        return sizes
    if step.op in _ELEMENTWISE:
        return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
    if step.op == "ConstantOfShape":
        return math.prod(int(dim) for dim in arrays[0].reshape(-1))
    if step.op == "Expand":
        return math.prod(np.broadcast_shapes(arrays[0].shape, tuple(arrays[1].tolist())))
    if step.op == "Tile":
        return arrays[0].size * math.prod(arrays[1].tolist())
    if step.op == "Gather":
        return arrays[0].size * max(1, arrays[1].size)
    if step.op == "Range":
        start, limit, delta = (float(array.reshape(-1)[0]) for array in arrays)
        return math.ceil(max(0, (limit - start) / delta))
    return None


def _run(step: Step, inputs: list[Any]) -> list[Any]:
    helper, names = onnx().helper, [name for name in dict.fromkeys(step.node.inputs) if name]
    given = [helper.make_value_info(name, helper.make_tensor_type_proto(1, None)) for name in names]
    made = [helper.make_value_info(name, helper.make_tensor_type_proto(1, None)) for name in step.node.outputs]
    graph = helper.make_graph([step.node.proto], "node", given, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", step.net.opset)])
    from onnx.reference import ReferenceEvaluator

    feed = {name: inputs[step.node.inputs.index(name)] for name in names}
    return list(ReferenceEvaluator(model).run(None, feed))


def reshaped(step: Step, old: tuple[int, ...], dims: list[int]) -> tuple[int, ...]:
    """The new shape of a Reshape to these dims, in which 0 copies an axis and -1 takes what is left."""
    if not step.attribute("allowzero", 0):
        dims = [old[axis] if dim == 0 else dim for axis, dim in enumerate(dims)]
    rest, count = math.prod(dim for dim in dims if dim != -1), math.prod(old)
    shape = tuple(count // max(1, rest) if dim == -1 else dim for dim in dims)
    if dims.count(-1) > 1 or min(dims, default=0) < -1 or math.prod(shape) != count:
        raise step.error(f"it cannot give {old} the shape {dims}")
    return shape


def slices(step: Step, shape: tuple[int, ...]) -> list[slice]:
    """The part of each axis that a Slice takes."""
    starts, ends = step.list_of(1, "starts") or [], step.list_of(2, "ends") or []
    axes = step.list_of(3, "axes") or list(range(len(starts)))
    strides = step.list_of(4) or [1] * len(starts)
    parts = [slice(None)] * len(shape)
    for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
        if stride == 0:
            raise step.error("its step is 0")
        parts[step.axis(axis, shape)] = slice(start, None if stride < 0 and end < -(2**30) else end, stride)
    return parts
