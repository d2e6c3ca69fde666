"""Operators that Caffe cannot express, with the reasons and what to change in the exporting model."""

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
