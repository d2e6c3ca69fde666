"""Ends of a net before those of its model, such as before the decoding of boxes."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.errors import UsageError
from fcaffe.tools.onnx.reading.load import Node, Source
from fcaffe.suggestions import did_you_mean

AUTO = "auto"
_SUMS = "Add Sub Mul Div Concat Identity Cast Clip Max Min"  # parts of features, too
_DECODING = (
    "Reshape Transpose Flatten Squeeze Unsqueeze Expand Tile Slice Split Gather GatherND GatherElements ScatterND Pad "
    "Sigmoid Softmax LogSoftmax Exp Log Sqrt Pow Neg Reciprocal Floor Where Greater Less Equal Not And Or ReduceMax "
    "ReduceSum ArgMax TopK NonZero NonMaxSuppression Loop If"
)


def cut(source: Source, names: Sequence[str], path: str) -> list[str]:
    """The values of these names, and for "auto" those that the decoding begins with, in their order.

    Raises UsageError for a name that the model does not have.
    """
    known = {output: node for node in source.nodes for output in node.outputs if output}
    for name in names:
        if name != AUTO and name not in known:
            raise UsageError(f'{path} has no value "{name}"{did_you_mean(name, known)} to cut at')
    ends = {end for name in names for end in (_before_decoding(source, known) if name == AUTO else [name])}
    return [name for name in known if name in ends]


def _before_decoding(source: Source, makers: dict[str, Node]) -> set[str]:
    """For each output the last features: convolutions, inner products, activations, poolings and the like.

    An output that follows from features by sums alone is one itself.
    """
    ends: set[str] = set()
    for output in source.outputs:
        found, passed, seen, waiting = set(), set(), {""}, [output]
        while waiting:
            name = waiting.pop()
            node = makers.get(name)
            if node is None or name in seen:
                continue
            seen.add(name)
            inputs = [one for one in node.inputs if one in makers and makers[one].op != "Constant"]
            bias = node.op == "Add" and [makers[one].op for one in inputs] == ["MatMul"]
            integral = node.op == "Conv" and _behind_softmax(inputs[0], makers) if inputs else False
            if bias or not integral and node.op not in f"{_SUMS} {_DECODING} Shape".split():
                found.add(name)
            elif node.op != "Shape":
                passed.add(node.op)
                waiting += inputs
        ends |= {output} if passed <= set(_SUMS.split()) else found
    return ends


def _behind_softmax(name: str, makers: dict[str, Node]) -> bool:
    """Whether a value is a Softmax in another shape, as that which YOLOv8's last convolution takes the mean of."""
    node = makers.get(name)
    while node is not None and node.op in ("Reshape", "Transpose"):
        node = makers.get(node.inputs[0])
    return node is not None and node.op == "Softmax"
