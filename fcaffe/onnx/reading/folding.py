"""Shapes of a node's outputs, and constants where its inputs are constants, both computed by onnx."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.errors import NetError
from fcaffe.input_files import asking
from fcaffe.onnx.library import onnx
from fcaffe.onnx.reading.graph import Shape, Step
from fcaffe.onnx.reading.load import in_known_type

SMALL = 1 << 12  # elements of a constant that a shape may depend on
NAMES = (
    "Abs Add And Cast Ceil Concat Constant ConstantOfShape Cos CumSum Div Equal Exp Expand Flatten Floor Gather "
    "Greater GreaterOrEqual Identity Less LessOrEqual Log Max Min Mod Mul Neg Not Or Pow Range Reciprocal ReduceMax "
    "ReduceMean ReduceMin ReduceProd ReduceSum Reshape Round Sign Sin Slice Split Sqrt Squeeze Sub Tile Transpose "
    "Trilu Unsqueeze Where"
)
FOLDED = set(NAMES.split())
CHANGED = {"Clip", "Pad", "Resize", "Slice", "Upsample"}  # which have other inputs in version 11 than before


def shapes_of(step: Step) -> list[Shape | None]:
    """The shapes of the outputs, each None unless it follows from the inputs' shapes and small constants."""
    if any(isinstance(step.net.known[name], NetError) for name in step.node.inputs if name):
        return [None] * len(step.node.outputs)
    outputs = onnx().shape_inference.infer_shapes(_model(step), data_prop=True).graph.output
    return [_dims(value.type.tensor_type) for value in outputs]


def _dims(tensor: Any) -> Shape | None:
    known = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
    return tuple(dim.dim_value for dim in tensor.shape.dim) if known else None


def fold(step: Step) -> list[np.ndarray] | None:
    """The outputs of a node as constants, or None if it needs blobs, or is not folded. Raises NetError."""
    if step.op in ("Shape", "Size") and step.has(0):
        shape = step.known(0).shape
        part = shape[slice(step.attribute("start", 0), step.node.attributes.get("end"))]
        return [np.array(part if step.op == "Shape" else math.prod(shape), np.int64)]
    inputs = {name: step.net.known[name] for name in step.node.inputs if name}
    if step.op == "CastLike" and isinstance(array := inputs[step.node.inputs[0]], np.ndarray):
        return [array.astype(np.float32)]  # the type of all blobs
    if step.op not in FOLDED or None in step.shapes or not all(isinstance(one, np.ndarray) for one in inputs.values()):
        return None
    from onnx.reference import ReferenceEvaluator

    step.net.take(sum(math.prod(shape) for shape in step.shapes if shape is not None))
    with np.errstate(all="ignore"), asking():
        return [in_known_type(np.asarray(one)) for one in ReferenceEvaluator(_model(step)).run(None, inputs)]


def definition(step: Step) -> Any:
    """The graph of simpler operators by which ONNX defines this one; None for a primitive operator."""
    schema = onnx().defs.get_schema(step.op, step.net.opset) if onnx().defs.has(step.op) else None
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    from onnx import inliner

    graph = inliner.inline_selected_functions(_model(step), [("", step.op)], inline_schema_functions=True).graph
    outer = {"", *step.node.inputs, *step.node.outputs}
    for node in graph.node:  # whose other names are those of each node of this operator
        for names in (node.input, node.output):
            names[:] = [name if name in outer else f"{step.node.name}/{name}" for name in names]
    return graph if all(node.op_type != step.op for node in graph.node) else None  # a definition in newer operators


def _model(step: Step) -> Any:
    """A model of the node. Small constants are constants of it, too, for the inference of shapes."""
    helper, types = onnx().helper, onnx().TensorProto
    given, small = [], []
    for name in dict.fromkeys(filter(None, step.node.inputs)):
        known, kind = step.net.known[name], types.FLOAT
        if isinstance(known, NetError):
            raise known
        if isinstance(known, np.ndarray):
            kind = helper.np_dtype_to_tensor_dtype(known.dtype)
            small += [onnx().numpy_helper.from_array(known, name)] if known.size <= SMALL else []
        given.append(helper.make_tensor_value_info(name, kind, known.shape))
    made = [helper.make_empty_tensor_value_info(name) for name in step.node.outputs]
    graph = helper.make_graph([step.node.proto], "node", given, made, small)
    opset = step.net.opset if step.op in CHANGED else max(step.net.opset, 11)  # which has negative axes
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
