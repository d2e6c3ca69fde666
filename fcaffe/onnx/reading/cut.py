"""Ends of a net before those of its model, such as before the decoding of boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fcaffe.errors import UsageError
from fcaffe.onnx.reading.load import Node, Source
from fcaffe.suggestions import did_you_mean

AUTO = "auto"
_SUMS = {"Add", "Sub", "Mul", "Div", "Concat", "Identity", "Cast", "Clip", "Max", "Min"}  # of features, too
_DECODING = (
    "Reshape Transpose Flatten Squeeze Unsqueeze Expand Tile Slice Split Gather GatherND GatherElements ScatterND Pad "
    "Sigmoid Softmax LogSoftmax Exp Log Sqrt Pow Neg Reciprocal Floor Where Greater Less Equal Not And Or ReduceMax "
    "ReduceSum ArgMax TopK NonZero NonMaxSuppression Loop If"
)


def cut(source: Source, names: Sequence[str], path: str) -> list[str]:
    """The values of these names, and for "auto" the inputs of the decoding, in their order.

    Raises UsageError for a name that the model does not have.
    """
    makers = {output: node for node in source.nodes for output in node.outputs if output}
    for name in names:
        if name != AUTO and name not in makers:
            raise UsageError(f'{path} has no value "{name}"{did_you_mean(name, makers)} to cut at')
    ends = {name for name in names if name != AUTO}
    if AUTO in names:
        data = set(source.inputs)  # values that depend on inputs, and not on their shapes alone
        for node in source.nodes:
            if node.op != "Shape" and data & set(node.inputs):
                data.update(node.outputs)
        reads = {name: [one for one in node.inputs if one in data & makers.keys()] for name, node in makers.items()}
        ends.update(*(_last_features(output, makers, reads) for output in source.outputs if output in makers))
    return [name for name in makers if name in ends]


def _last_features(output: str, makers: Mapping[str, Node], reads: Mapping[str, Sequence[str]]) -> set[str]:
    """The features that an output is decoded from: tops of convolutions, inner products, activations, poolings.

    An output that follows from features by sums alone is one itself.
    """
    found, passed, waiting = set(), {output}, [output]
    while waiting:
        name = waiting.pop()
        node, inputs = makers[name], reads[name]
        bias = node.op == "Add" and [makers[one].op for one in inputs] == ["MatMul"]
        mean = node.op == "Conv" and _is_softmax(inputs, makers, reads)  # of positions, as in YOLOv8
        if bias or not (mean or node.op in _SUMS.union(_DECODING.split())):
            found.add(name)
            continue
        waiting += set(inputs) - passed
        passed.update(inputs)
    return found if found and {makers[name].op for name in passed - found} - _SUMS else {output}


def _is_softmax(names: Sequence[str], makers: Mapping[str, Node], reads: Mapping[str, Sequence[str]]) -> bool:
    """Whether a value is a Softmax, perhaps in another shape."""
    while names and makers[names[0]].op in ("Reshape", "Transpose"):
        names = reads[names[0]]
    return bool(names) and makers[names[0]].op == "Softmax"
