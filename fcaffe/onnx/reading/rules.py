"""The rules: which function reads which operators of ONNX, and the types that they may have."""

from __future__ import annotations

from typing import Any

from fcaffe.onnx.library import onnx
from fcaffe.onnx.reading import activations, arithmetic, convolution, normalization, pooling, recurrent, reorder, resize
from fcaffe.onnx.reading.graph import Reader, Step, readers, reads

NEWEST = 28  # the newest version of ONNX's operators whose definitions the rules know

_RULES: dict[str, Reader] = {
    # a function of each value
    "Abs Elu Exp LRN LeakyRelu Log Relu Sigmoid Softplus Tanh": activations.function,
    "HardSigmoid HardSwish Neg Reciprocal Selu Softsign Sqrt": activations.formula,
    "Clip": activations.clip,
    "Gelu": activations.gelu,
    "PRelu": arithmetic.prelu,
    "Pow": activations.power,
    # sums, products and extremes
    "Add Div Mul Sub": arithmetic.arithmetic,
    "Max Min": arithmetic.extreme,
    "Mean Sum": arithmetic.total,
    "Where": arithmetic.where,
    # windows and matrices
    "Conv ConvTranspose": convolution.convolution,
    "Einsum": convolution.einsum,
    "Gemm": convolution.gemm,
    "MatMul": convolution.matmul,
    "LSTM": recurrent.lstm,
    "AveragePool MaxPool": pooling.pooling,
    "Resize Upsample": resize.resize,
    # statistics of several values
    "ArgMax ArgMin": pooling.argmax,
    "GlobalAveragePool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp": pooling.reduction,
    "ReduceMax ReduceMean ReduceMin ReduceSum ReduceSumSquare": pooling.reduction,
    "BatchNormalization": normalization.batch_normalization,
    "GroupNormalization InstanceNormalization LayerNormalization RMSNormalization": normalization.normalization,
    "LogSoftmax Softmax": normalization.softmax,
    "MeanVarianceNormalization": normalization.mean_variance,
    # the same values
    "Cast CastLike": reorder.cast,
    "DepthToSpace SpaceToDepth": reorder.depth_to_space,
    "Concat": reorder.concat,
    "Dropout": reorder.dropout,
    "Expand Tile": reorder.expand,
    "Flatten Reshape Squeeze Unsqueeze": reorder.reshape,
    "Gather": reorder.gather,
    "GatherND": reorder.gather_grid,
    "Identity": reorder.identity,
    "Pad": reorder.pad,
    "Slice": reorder.part,
    "Split": reorder.split,
    "Transpose": reorder.transpose,
}
for _operators, _rule in _RULES.items():
    reads(*_operators.split())(_rule)

FLOAT, INT32, INT64, BOOL = 1, 6, 7, 9  # ONNX's numbers of types
FLOATS, WIDE = {FLOAT, 10, 11, 16}, {INT32, INT64}
_MOVES = (  # operators that give values of any type
    "ArgMax ArgMin Cast CastLike Concat DepthToSpace Expand Flatten Gather GatherND GlobalMaxPool Identity Max MaxPool "
    "Min Pad ReduceMax ReduceMin Relu Reshape Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze Where"
)
_EXACT = "Abs Add Clip Mul Neg ReduceL1 ReduceSum ReduceSumSquare Sub Sum"  # for whole numbers, too
MOVES, WHOLE = set(_MOVES.split()), set(_EXACT.split())


def rule_of(step: Step) -> Reader | None:
    """The rule for the operator in the version of the file, or None.

    Raises NetError if the version is newer than the rule, and has other attributes, defaults or inputs.
    """
    found, schema = readers.get(step.op), step.schema
    newer = found is not None and schema is not None and schema.since_version > NEWEST
    if newer and _interface(schema) != _interface(onnx().defs.get_schema(step.op, NEWEST)):
        raise step.refuse(
            f"version {schema.since_version} of it says more than fcaffe knows",
            f"export it with opset_version {NEWEST}",
        )
    return found


def _interface(schema: Any) -> Any:
    defaults = {name: one.default_value.SerializeToString() for name, one in schema.attributes.items()}
    return defaults, [(one.name, one.option) for one in (*schema.inputs, *schema.outputs)]
