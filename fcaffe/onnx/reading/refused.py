"""Operators that Caffe cannot express, with the reasons and what to change in the exporting model."""

from __future__ import annotations

from fcaffe.onnx.reading.graph import Step

UNKNOWN = "write the model by operators in docs/ways-in.md, or export only the module before it"
_AFTER = "end the net before it by --cut BLOB,... or --cut auto, and do the rest in the program that runs the net"
_BY_REASON = {
    "NonMaxSuppression TopK Unique NonZero Compress": ("it chooses values by their size", _AFTER),
    "Equal Greater Less Not And Or GreaterOrEqual LessOrEqual IsNaN If Loop Scan": (
        "Caffe has no conditions",
        "compute without conditions, such as by ReLU or masks of constants",
    ),
    "GatherElements ScatterND ScatterElements OneHot Trilu CumSum GridSample RoiAlign DeformConv": (
        "Caffe has no layer that reads or writes at indices",
        _AFTER,
    ),
    "QuantizeLinear DequantizeLinear QLinearConv QLinearMatMul ConvInteger DynamicQuantizeLinear": (
        "Caffe computes in float32",
        "export the model in float32, before it is quantised",
    ),
    "Sin Cos Tan Floor Ceil Round Sign Mod": ("Caffe has no such function", "make what it computes a constant"),
    "GRU RNN": ("Caffe has no GRU, and its RNN has an output layer of its own", "use nn.LSTM"),
    "Erf": ("Caffe has no error function, but for GELU, x * (1 + erf(x / sqrt(2))) / 2", "use nn.GELU"),
}
REASONS = {operator: reason for operators, reason in _BY_REASON.items() for operator in operators.split()}


def reason_of(step: Step) -> tuple[str, str]:
    """The reason for a node whose operator has no rule, and the remedy."""
    domain = step.node.proto.domain
    if domain in ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"):
        return (
            f"ONNX Runtime's optimizer writes operators of {domain}",
            f"convert the file before it is optimised, or {_AFTER}",
        )
    if step.schema is None:
        return f"it is an operator of {domain}", f"export the model without it, or {_AFTER}"
    return REASONS.get(step.op, ("fcaffe knows no layers for this operator", UNKNOWN))
