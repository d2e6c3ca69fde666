"""What onnx says of a node: types and shapes of its outputs, constants, and its definition by simpler operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.errors import NetError
from fcaffe.input_files import UnreadableError, asking
from fcaffe.onnx.check import run_onnx
from fcaffe.onnx.library import onnx
from fcaffe.onnx.reading.graph import Inferred, Step, Value
from fcaffe.onnx.reading.load import dims_of

SMALL = 1 << 12  # elements of a constant that a shape may depend on
# Versions whose inference is right: from 11 on of negative axes, from 22 on of poolings that round up. Before 11 other
# operators have other inputs.
_RIGHT_SINCE = {"AveragePool": 22, "MaxPool": 22} | dict.fromkeys(("Clip", "Pad", "Resize", "Slice", "Upsample"), 0)
OF_SHAPES = {"Shape", "Size", "EyeLike"}  # which read the shape of their input only
UNBOUNDED = {"Loop", "Scan", "SequenceMap"}  # which may take any time
SHORTER = {"NonZero", "Compress", "Unique", "NonMaxSuppression"}  # whose outputs are no larger than their inputs
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def inferred(step: Step) -> list[Inferred]:
    """The types and shapes of the outputs by onnx's strict inference, or else by a run of ONNX Runtime on zeros.

    Shapes that depend on values of the model's input are unknown, and all are if an input is refused.
    """
    if any(isinstance(step.net.known[name], NetError) for name in step.node.inputs if name):
        return [Inferred()] * len(step.node.outputs)
    model = model_of(step)
    try:
        with asking():
            outputs = onnx().shape_inference.infer_shapes(model, True, True, True).graph.output
        found = {one.name: Inferred(one.type.tensor_type.elem_type or None, dims_of(one)) for one in outputs}
    except UnreadableError as problem:
        found = _of_run(step, model, str(problem))
    return [found.get(name, Inferred()) for name in step.node.outputs]


def _of_run(step: Step, model: Any, problem: str) -> dict[str, Inferred]:
    if min(step.node.attributes.get("strides", ()), default=1) < 1:  # ends the process of some versions
        raise NetError(f"onnx finds no shapes for it: {problem[:300]}")
    inputs = {name: hollow(step, name) for name in dict.fromkeys(filter(None, step.node.inputs))}
    step.net.take(sum(array.size for array in inputs.values()))
    if min(step.node.attributes.get("strides", []), default=1) < 1:  # by which older versions of it divide
        raise NetError("its strides are not positive")
    try:
        with asking():
            found = run_onnx(model.SerializeToString(), inputs)
    except UnreadableError:
        raise NetError(f"onnx finds no shapes for it: {problem[:300]}") from None
    return {name: Inferred(type_of(array), array.shape) for name, array in found.items()}


def type_of(array: np.ndarray) -> int:
    return int(onnx().helper.np_dtype_to_tensor_dtype(array.dtype))


def hollow(step: Step, name: str) -> np.ndarray:
    """The constant of this name, or zeros in the shape and type of the blob, which take no memory."""
    known = step.net.known[name]
    if isinstance(known, np.ndarray):
        return known
    dtype = onnx().helper.tensor_dtype_to_np_dtype(step.net.types[name])
    assert isinstance(known, Value)
    return np.broadcast_to(np.zeros((), dtype), known.shape)


def is_constant(step: Step) -> bool:
    """Whether the outputs follow from constants and shapes, whatever the operator."""
    if step.schema is None or step.op in UNBOUNDED | RANDOM or step.node.attributes.get("training_mode"):
        return False
    names = step.node.inputs[:1] if step.op == "CastLike" else step.node.inputs
    return step.op in OF_SHAPES or all(isinstance(step.net.known[name], np.ndarray) for name in names if name)


def fold(step: Step) -> list[np.ndarray] | None:
    """The outputs of a node as constants, by onnx's reference evaluator; None if their size is open."""
    shapes = [one.shape for one, name in zip(step.outputs, step.node.outputs, strict=True) if name]
    if step.op not in SHORTER:
        if None in shapes:
            return None
        step.net.take(sum(math.prod(shape) for shape in shapes if shape is not None))
    from onnx.reference import ReferenceEvaluator

    model = model_of(step)
    inputs = {one.name: hollow(step, one.name) for one in model.graph.input}
    try:
        with np.errstate(all="ignore"), asking():
            made = ReferenceEvaluator(model).run(None, inputs)
        named = {one.name: np.asarray(array) for one, array in zip(model.graph.output, made, strict=True)}
    except UnreadableError:  # some versions of operators are not in it
        with asking():
            named = run_onnx(model.SerializeToString(), inputs)
    return [named.get(name, np.zeros(0)) for name in step.node.outputs]


def empty(step: Step) -> list[np.ndarray] | None:
    """The outputs as constants if they have no elements."""
    if not step.outputs or not all(one.shape is not None and one.type and 0 in one.shape for one in step.outputs):
        return None
    return [np.zeros(one.shape or 0, onnx().helper.tensor_dtype_to_np_dtype(one.type)) for one in step.outputs]


def is_defined(step: Step) -> bool:
    """Whether ONNX defines the operator by simpler ones."""
    return step.schema is not None and (step.schema.has_function or step.schema.has_context_dependent_function)


def definition(step: Step) -> Any:
    """The graph of simpler operators by which ONNX defines this one; None for a primitive operator."""
    if not is_defined(step):
        return None
    from onnx import inliner

    model, schema = model_of(step), step.schema
    (node,) = model.graph.node
    stated = {one.name for one in node.attribute}
    node.attribute.extend(  # which the inliner leaves out
        one.default_value for name, one in schema.attributes.items() if name not in stated and one.default_value.type
    )
    with asking():
        model = inliner.inline_selected_functions(model, [("", step.op)], inline_schema_functions=True)
    known = all(node.op_type != step.op for node in model.graph.node)  # else it is in newer operators
    return model.graph if known else None


def model_of(step: Step) -> Any:
    """A model of the node. Small constants are constants of it, too, for the inference of shapes."""
    helper = onnx().helper
    given, small = [], []
    for name in dict.fromkeys(filter(None, step.node.inputs)):
        known = step.net.known[name]
        if isinstance(known, NetError):
            raise known
        if isinstance(known, np.ndarray):
            kind = type_of(known)
            small += [onnx().numpy_helper.from_array(known, name)] if known.size <= SMALL else []
        else:
            kind = step.net.types[name]
        given.append(helper.make_tensor_value_info(name, kind, known.shape))
    return model_with(max(step.net.opset, _RIGHT_SINCE.get(step.op, 11)), step.node.proto, given, small)


def model_with(version: int, node: Any, inputs: list[Any], constants: list[Any]) -> Any:
    """A model of this version of the operators with one node."""
    helper = onnx().helper
    made = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, made, constants)
    opsets = [helper.make_opsetid("", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
