"""Computes nodes whose inputs are constants, by onnx's shape inference and its reference implementation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.tools.onnx.library import onnx
from fcaffe.tools.onnx.reading.graph import Step
from fcaffe.tools.onnx.reading.load import in_known_type

SMALL = 1 << 12  # elements of a constant that a shape may depend on
NAMES = (
    "Abs Add And Cast Ceil Concat Constant ConstantOfShape Div Equal Exp Expand Flatten Floor Gather Greater "
    "GreaterOrEqual Identity Less LessOrEqual Log Max Min Mod Mul Neg Not Or Pow Range Reciprocal ReduceMax ReduceMean "
    "ReduceMin ReduceProd ReduceSum Reshape Round Slice Split Sqrt Squeeze Sub Tile Transpose Unsqueeze Where"
)
FOLDED = set(NAMES.split())


def fold(step: Step) -> list[np.ndarray] | None:
    """The outputs of a node as constants, or None if it needs blobs, or is not folded. Raises NetError."""
    if step.op in ("Shape", "Size") and step.has(0):
        shape = step.known(0).shape
        part = shape[slice(step.attribute("start", 0), step.node.attributes.get("end"))]
        return [np.array(part if step.op == "Shape" else math.prod(shape), np.int64)]
    inputs = {name: step.net.known[name] for name in step.node.inputs if name}
    if step.op == "CastLike" and isinstance(array := inputs[step.node.inputs[0]], np.ndarray):
        return [array.astype(np.float32)]  # the type of all blobs
    arrays = {name: array for name, array in inputs.items() if isinstance(array, np.ndarray)}
    if step.op not in FOLDED or len(arrays) < len(inputs):
        return None
    from onnx.reference import ReferenceEvaluator

    model = _model(step, arrays)
    for value in onnx().shape_inference.infer_shapes(model, data_prop=True).graph.output:
        kind = value.type.tensor_type
        if not kind.HasField("shape") or not all(dim.HasField("dim_value") for dim in kind.shape.dim):
            return None
        step.net.take(math.prod(dim.dim_value for dim in kind.shape.dim))
    with np.errstate(all="ignore"):
        return [in_known_type(np.asarray(one)) for one in ReferenceEvaluator(model).run(None, arrays)]


def _model(step: Step, arrays: dict[str, np.ndarray]) -> Any:
    """A model of the node. Small inputs are constants, too, for the inference of shapes."""
    helper = onnx().helper
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
    made = [helper.make_empty_tensor_value_info(name) for name in step.node.outputs]
    small = [onnx().numpy_helper.from_array(one, name) for name, one in arrays.items() if one.size <= SMALL]
    graph = helper.make_graph([step.node.proto], "node", given, made, small)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", step.net.opset)])


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
