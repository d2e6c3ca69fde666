"""Random ONNX graphs of the operators that are converted, with random attributes, for versions 7 to 21 of operators."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fcaffe.onnx.library import onnx

Node = tuple[str, dict[str, Any], list[Any]]  # an operator, its attributes, and its inputs behind the first: constants
VERSIONS = range(7, 22)
SWAPPED = "(swapped)"  # of a node whose first input is the last one
MOST = 40_000  # values of a blob
EACH = (
    "Abs Exp Identity Neg Relu Sigmoid Softplus Softsign Tanh Elu LeakyRelu HardSigmoid Selu ThresholdedRelu Celu "
    "HardSwish Mish Gelu Reciprocal Sqrt Log Sign Ceil Floor Erf"
)
REDUCED = "Sum Mean Max Min L1 L2 SumSquare LogSum LogSumExp Prod"


class Graphs:
    """Draws nodes, and the values for their attributes and constants."""

    def __init__(self, seed: int) -> None:
        self.dice, self.values = random.Random(seed), np.random.default_rng(seed)
        self.version = self.dice.choice(VERSIONS)

    def model(self, most: int = 3) -> Any:
        """A model of up to so many nodes in a chain, which onnx's checker takes. Its input has 1 to 6 axes."""
        axes = self.dice.choice([1, 2, 3, 4, 4, 4, 4, 5, 6])
        first = tuple(self.dice.choices([1, 2, 3, 4, 5, 7] if axes < 5 else [1, 2, 3], k=axes))
        chosen: list[Node] = []
        shape, made = first, None
        for _ in range(20):
            drawn = self.dice.choice(RULES)(self, shape)
            model = self.chain([*chosen, drawn], first)
            if model is not None:
                made, chosen = model, [*chosen, drawn]
                shape = tuple(dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim)
                if len(chosen) == most or not shape or self.dice.random() < 1 / most:
                    break
        return made or self.model(most)

    def chain(self, drawn: Sequence[Node], shape: tuple[int, ...]) -> Any:
        """A model of these nodes, each with the one before as its first input, or None if onnx refuses it."""
        helper, nodes, constants = onnx().helper, [], []
        for index, (op, attributes, more) in enumerate(drawn):
            names = [f"x{index}"]
            for value in more:
                names.append("" if value is None else names[0] if isinstance(value, str) else f"c{len(constants)}")
                if names[-1].startswith("c"):
                    constants.append(onnx().numpy_helper.from_array(np.asarray(value), names[-1]))
            if attributes.get(SWAPPED):
                names.reverse()
            stated = {
                name: one for name, one in attributes.items() if one is not None and one != [] and name != SWAPPED
            }
            nodes.append(helper.make_node(op, names, [f"x{index + 1}"], f"{op}_{index}", **stated))
        ends = [
            helper.make_tensor_value_info(name, 1, dims) for name, dims in (("x0", shape), (f"x{len(drawn)}", None))
        ]
        graph = helper.make_graph(nodes, "random", ends[:1], ends[1:], constants)
        opsets = [helper.make_opsetid("", self.version)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=max(4, helper.find_min_ir_version_for(opsets))
        )
        try:
            model = onnx().shape_inference.infer_shapes(model, True, True, True)
            onnx().checker.check_model(model)
        except (onnx().checker.ValidationError, onnx().shape_inference.InferenceError):
            return None
        dims = [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]
        return model if 0 < np.prod(dims) < MOST else None

    # --- attributes and constants ---

    def maybe(self, value: Any) -> Any:
        """The value, or None for the operator's default."""
        return self.dice.choice([value, None])

    def some(self, *shape: int) -> np.ndarray:
        return self.values.uniform(-1, 1, shape).astype(np.float32)

    def axis(self, shape: tuple[int, ...]) -> int:
        return self.dice.randrange(-len(shape) if self.version >= 11 else 0, len(shape))

    def axes(self, shape: tuple[int, ...]) -> list[int]:
        chosen = sorted(self.dice.sample(range(len(shape)), self.dice.randint(1, len(shape))))
        return [axis - len(shape) * (self.version >= 11 and self.dice.random() < 0.3) for axis in chosen]

    def windows(self, axes: int) -> dict[str, Any]:
        dice, kernel = self.dice, self.dice.choices([1, 2, 3], k=axes)
        auto = dice.choice(["NOTSET"] * 4 + ["SAME_UPPER", "SAME_LOWER", "VALID"])
        pads = [dice.randint(0, k - 1) for k in kernel * 2]
        return {
            "kernel_shape": kernel,
            "strides": self.maybe(dice.choices([1, 2, 3], k=axes)),
            "auto_pad": None if auto == "NOTSET" else auto,
            "pads": self.maybe(pads if dice.random() < 0.6 else kernel and [k // 2 for k in kernel] * 2)
            if auto == "NOTSET"
            else None,
        }

    def broadcast(self, shape: tuple[int, ...]) -> np.ndarray | str:
        """A constant that fits a blob of this shape, which may repeat either; or the blob itself."""
        if self.dice.random() < 0.15:
            return "x"
        dims = [self.dice.choice([1, n, n, 2 if n == 1 else n]) for n in shape][self.dice.randint(0, len(shape)) :]
        return self.some(*dims) + np.float32(self.dice.choice([0, 2]))


def _each(g: Graphs, shape: tuple[int, ...]) -> Node:
    op = g.dice.choice(EACH.split())
    attributes = (
        {"alpha": g.maybe(g.dice.choice([0.1, 0.5, 1.0]))} if op in ("Elu", "LeakyRelu", "HardSigmoid", "Celu") else {}
    )
    if op == "Gelu":
        attributes = {"approximate": g.maybe(g.dice.choice(["none", "tanh"]))}
    return op, attributes, []


def _clip(g: Graphs, shape: tuple[int, ...]) -> Node:
    low, high = g.maybe(g.dice.choice([0.0, -0.5, -3.0])), g.maybe(g.dice.choice([6.0, 0.5, 1.0]))
    if g.version < 11:
        return "Clip", {"min": low, "max": high}, []
    return "Clip", {}, [None if one is None else np.float32(one) for one in (low, high)]


def _conv(g: Graphs, shape: tuple[int, ...]) -> Node:
    axes, transposed = max(1, len(shape) - 2), g.dice.random() < 0.3
    window, channels = g.windows(axes), shape[1] if len(shape) > 1 else 1
    group = g.dice.choice([1, 1, channels])
    outputs = group * g.dice.randint(1, 3)
    dims = (channels, outputs // group) if transposed else (outputs, channels // group)
    more = {"group": g.maybe(group) if group == 1 else group, "dilations": g.maybe(g.dice.choices([1, 1, 2], k=axes))}
    if transposed and g.dice.random() < 0.3:
        more["output_padding"] = [g.dice.randint(0, s - 1) for s in window["strides"] or [1] * axes]
    bias = g.maybe(g.some(outputs))
    weights = g.some(*dims, *window["kernel_shape"])
    return (
        ("ConvTranspose" if transposed else "Conv"),
        window | more,
        [weights, bias] if bias is not None else [weights],
    )


def _pool(g: Graphs, shape: tuple[int, ...]) -> Node:
    op, window = g.dice.choice(["MaxPool", "AveragePool"]), g.windows(max(1, len(shape) - 2))
    if g.version >= 10 and window["auto_pad"] is None:
        window["ceil_mode"] = g.maybe(1)
    return op, window | ({"count_include_pad": g.maybe(1)} if op == "AveragePool" else {}), []


def _reduce(g: Graphs, shape: tuple[int, ...]) -> Node:
    op, axes, keep = "Reduce" + g.dice.choice(REDUCED.split()), g.maybe(g.axes(shape)), {"keepdims": g.maybe(0)}
    if g.version >= (13 if op == "ReduceSum" else 18):
        return op, keep, [] if axes is None else [np.int64(axes)]
    return op, {"axes": axes, **keep}, []


def _arithmetic(g: Graphs, shape: tuple[int, ...]) -> Node:
    op = g.dice.choice(["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "PRelu", "Pow"])
    if op == "Pow":
        return op, {}, [np.float32(g.dice.choice([1, 2, 3]))]
    return op, {SWAPPED: op in ("Sub", "Div") and g.dice.random() < 0.3}, [g.broadcast(shape)]


def _matrix(g: Graphs, shape: tuple[int, ...]) -> Node:
    n = g.dice.randint(1, 4)
    if len(shape) == 2 and g.dice.random() < 0.6:
        a, b = g.maybe(1), g.maybe(1)
        k = shape[0] if a else shape[1]
        more = [g.some(*((n, k) if b else (k, n))), *([g.some(n)] if g.dice.random() < 0.7 else [])]
        return "Gemm", {"transA": a, "transB": b, "alpha": g.maybe(0.5), "beta": g.maybe(2.0)}, more
    if g.dice.random() < 0.3:
        return "MatMul", {SWAPPED: True}, [g.some(n, shape[-2] if len(shape) > 1 else 1)]
    ones = (1,) * g.dice.choice([0, 0, 1, 2])
    return "MatMul", {}, [g.some(*ones, shape[-1], n) if g.dice.random() < 0.8 else g.some(shape[-1])]


def _norm(g: Graphs, shape: tuple[int, ...]) -> Node:
    channels, eps = shape[1] if len(shape) > 1 else 1, {"epsilon": g.maybe(0.01)}
    op = g.dice.choice(
        ["BatchNormalization", "InstanceNormalization", "LayerNormalization", "MeanVarianceNormalization", "LRN"]
    )
    if op == "BatchNormalization":
        return op, eps, [g.some(channels), g.some(channels), g.some(channels), abs(g.some(channels)) + 0.1]
    if op == "InstanceNormalization":
        return op, eps, [g.some(channels), g.some(channels)]
    if op == "LayerNormalization":
        axis = g.axis(shape)
        return (
            op,
            {"axis": axis, **eps},
            [g.some(*shape[axis:]), *([g.some(*shape[axis:])] if g.dice.random() < 0.5 else [])],
        )
    if op == "LRN":
        return op, {"size": g.dice.choice([1, 3, 5]), "alpha": g.maybe(0.1), "bias": g.maybe(2.0)}, []
    return op, {"axes": g.maybe(sorted(axis % len(shape) for axis in g.axes(shape)))}, []


def _softmax(g: Graphs, shape: tuple[int, ...]) -> Node:
    return g.dice.choice(["Softmax", "LogSoftmax"]), {"axis": g.maybe(g.axis(shape))}, []


def _move(g: Graphs, shape: tuple[int, ...]) -> Node:
    op, axis = (
        g.dice.choice(["Transpose", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Gather", "Tile", "Expand"]),
        g.axis(shape),
    )
    if op == "Transpose":
        return op, {"perm": g.maybe(g.dice.sample(range(len(shape)), len(shape)))}, []
    if op == "Flatten":
        return op, {"axis": g.maybe(axis)}, []
    if op in ("Squeeze", "Unsqueeze"):
        ones = [index for index, n in enumerate(shape) if n == 1]
        axes = ones[:1] if op == "Squeeze" else [g.dice.randint(0, len(shape))]
        return op, {} if g.version >= 13 else {"axes": axes}, [np.int64(axes)] if g.version >= 13 else []
    if op == "Concat":
        dims = [*shape]
        dims[axis] = g.dice.randint(1, 3)
        return op, {"axis": axis}, [g.some(*dims), "x"][: g.dice.randint(1, 2)]
    if op == "Gather":
        indices = [g.dice.randrange(-n if g.version >= 11 else 0, n) for n in [shape[axis]] * g.dice.randint(1, 4)]
        return (
            op,
            {"axis": g.maybe(axis) if axis == 0 else axis},
            [np.int64(indices[0] if g.dice.random() < 0.3 else indices)],
        )
    if op == "Tile":
        return op, {}, [np.int64([g.dice.randint(1, 3) for _ in shape])]
    return (
        op,
        {},
        [
            np.int64(
                [2] * g.dice.randint(0, 1) + [g.dice.randint(1, 3) if n == 1 else g.dice.choice([1, n]) for n in shape]
            )
        ],
    )


def _part(g: Graphs, shape: tuple[int, ...]) -> Node:
    axes = [axis % len(shape) for axis in g.axes(shape)]
    steps = g.dice.choices([1, 1, 2, -1], k=len(axes)) if g.version >= 10 else [1] * len(axes)
    starts, ends = ([g.dice.randint(-shape[axis], shape[axis]) for axis in axes] for _ in range(2))
    if g.version < 10:
        return "Slice", {"starts": starts, "ends": ends, "axes": axes}, []
    return "Slice", {}, [np.int64(one) for one in (starts, ends, axes, steps)]


def _pad(g: Graphs, shape: tuple[int, ...]) -> Node:
    pads = [
        g.dice.choice([0, 0, 1, 2, -1]) if axis % len(shape) > 1 or g.dice.random() < 0.1 else 0
        for axis in range(2 * len(shape))
    ]
    mode, value = g.maybe(g.dice.choice(["reflect", "edge", "constant"])), g.maybe(0.5)
    if g.version < 11:
        return "Pad", {"pads": pads, "mode": mode, "value": value}, []
    return "Pad", {"mode": mode}, [np.int64(pads), *([np.float32(value)] if value is not None else [])]


def _blocks(g: Graphs, shape: tuple[int, ...]) -> Node:
    op = g.dice.choice(["DepthToSpace", "SpaceToDepth"])
    mode = {"mode": g.maybe("CRD")} if op == "DepthToSpace" and g.version >= 11 else {}
    return op, {"blocksize": g.dice.choice([1, 2]), **mode}, []


def _resize(g: Graphs, shape: tuple[int, ...]) -> Node:
    keep = min(2, len(shape) - 1)
    scales = np.float32([1] * keep + g.dice.choices([1, 2, 3, 0.5], k=len(shape) - keep))
    mode = g.dice.choice(["nearest", "linear"])
    if g.version < 9:
        return "Upsample", {"scales": scales.tolist(), "mode": mode}, []
    if g.version < 11:
        return ("Upsample" if g.version == 9 else "Resize"), {"mode": mode}, [scales]
    where = g.maybe(g.dice.choice(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]))
    mode = g.dice.choice(["nearest", "linear", "cubic"])
    nearest = {"nearest_mode": g.maybe("floor")} if mode == "nearest" else {}
    sizes = [int(n * g.dice.choice([1, 2, 2.5])) if axis >= keep else n for axis, n in enumerate(shape)]
    more = [None, scales] if g.dice.random() < 0.6 else [None, None, np.int64(sizes)]
    return "Resize", {"mode": mode, "coordinate_transformation_mode": where, **nearest}, more


def _rest(g: Graphs, shape: tuple[int, ...]) -> Node:
    op = g.dice.choice(["GlobalAveragePool", "GlobalMaxPool", "Dropout", "Reshape", "Cast"])
    if op == "Reshape":
        return op, {}, [np.int64(g.dice.choice([[-1], [0, -1], [1, -1], [*shape[::-1]]]))]
    return op, {"to": 1} if op == "Cast" else {}, []


RULES: list[Callable[[Graphs, tuple[int, ...]], Node]] = [
    *(_each, _clip, _conv, _conv, _pool, _pool, _reduce, _arithmetic, _arithmetic, _matrix, _norm, _softmax),
    *(_move, _move, _part, _pad, _blocks, _resize, _rest),
]
