"""Sums, products and extremes of blobs and constants.

ONNX repeats axes of length 1. Caffe's Scale and Bias repeat a block of successive axes over the others, and Tile an
axis.
"""

from __future__ import annotations

import copy
import functools
import math
import re

import numpy as np

from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.onnx.reading.activations import clipped, gelu_behind, number_of
from fcaffe.tools.onnx.reading.graph import Made, Shape, Step, Value, reads
from fcaffe.tools.onnx.reading.reorder import tiled

TINY = 1e-12  # a limit of norms, which keeps a division from being one by 0
SAME = 1e-6  # a product of factors this near to 1 is one that undoes another


def common_shape(step: Step, *shapes: Shape) -> Shape:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise step.error(f"its inputs of shapes {', '.join(map(str, shapes))} do not fit together") from None


def _block(step: Step, shape: Shape, constant: np.ndarray) -> tuple[int, np.ndarray]:
    """The axes of a blob that a constant varies over, from the first to the last: their start, and the constant."""
    wide = constant.reshape((1,) * (len(shape) - constant.ndim) + constant.shape)
    axes = [axis for axis in range(wide.ndim) if wide.shape[axis] != 1]
    first, last = axes[0], axes[-1] + 1
    step.net.take(math.prod(shape[first:last]))
    return first, np.broadcast_to(wide.reshape(wide.shape[first:last]), shape[first:last])


def _single(constant: np.ndarray) -> float | None:
    """The value of a constant whose elements are equal."""
    return float(constant.flat[0]) if constant.size and (constant == constant.flat[0]).all() else None


def _before(x: Value, *kinds: str) -> Made | None:
    """The layer of x if it is of these kinds, has a single bottom, and learns its blobs."""
    made = x.maker
    return made if made.kind in kinds and len(made.bottoms) == 1 and not made.fixed else None


def times_constant(step: Step, x: Value, constant: np.ndarray) -> Value:
    """The product, as the factors of a Scale in front if there is one along the same axes."""
    x = tiled(step, x, common_shape(step, x.shape, constant.shape))
    if (value := _single(constant)) is not None:
        return step.power(x, scale=value)
    axis, block = _block(step, x.shape, constant)
    before, name = _before(x, "Scale"), ""
    if before is not None and len(before.blobs) == 1 and _bias_axes(before) == (axis, block.shape):
        x, block, name = before.bottoms[0], block * before.blobs[0], before.wanted
        if np.abs(block - 1).max() <= SAME:
            return x
    return step.layer("Scale", x, blobs=[block], name=name, scale_param={"axis": axis, "num_axes": block.ndim})


def plus_constant(step: Step, x: Value, constant: np.ndarray) -> Value:
    """The sum, as the bias of the layer of x if it can have one."""
    x = tiled(step, x, common_shape(step, x.shape, constant.shape))
    value, before = _single(constant), _before(x, "Power", "Scale", "InnerProduct", "Convolution")
    if value is None:
        axis, block = _block(step, x.shape, constant)
    elif before is not None and before.kind == "InnerProduct":
        axis, block = len(x.shape) - 1, np.full(x.shape[-1:], value)
    else:
        p = before.param.power_param if before is not None and before.kind == "Power" else pb.PowerParameter(power=2)
        if p.power != 1 or p.shift != 0:
            return step.power(x, shift=value)
        assert before is not None
        return step.power(before.bottoms[0], scale=p.scale, shift=value, name=before.wanted)
    if before is None or len(before.blobs) != 1 or _bias_axes(before) != (axis, block.shape):
        return step.layer("Bias", x, blobs=[block], bias_param={"axis": axis, "num_axes": block.ndim})
    if before in step.made:
        step.made.remove(before)
    field = next(field.name for field, _ in before.param.ListFields() if field.name.endswith("_param"))
    changed = copy.deepcopy(getattr(before.param, field))
    changed.bias_term = True
    blobs = [before.blobs[0], block]
    return step.layer(before.kind, before.bottoms[0], blobs=blobs, name=before.wanted, **{field: changed})


def _bias_axes(made: Made) -> tuple[int, Shape]:
    """The first axis of a layer's biases in its top, and their shape."""
    if made.kind == "Scale":
        return made.param.scale_param.axis, made.blobs[0].shape
    return 1 if made.kind == "Convolution" else len(made.tops[0].shape) - 1, made.blobs[0].shape[:1]


def summed(step: Step, x: Value, y: Value, sign: float = 1) -> Value:
    """x + sign * y."""
    if x.shape == y.shape:
        for product, other in ((x, y), (y, x)) if step.net.forks and sign == 1 else ():
            if _by_channels(product):
                return step.layer("Axpy", product.maker.bottoms[1], product.maker.bottoms[0], other)
        return step.sum(x, y, coefficients=(1, sign))
    y = y if sign == 1 else step.power(y, scale=sign)
    return _combined(step, x, y, "Bias")


def _by_channels(x: Value) -> bool:
    """Whether x is a product of images with one factor for each of their channels."""
    made = x.maker
    return made.kind == "Scale" and [one.shape for one in made.bottoms[1:]] == [x.shape[:2]] and len(x.shape) == 4


def multiplied(step: Step, x: Value, y: Value) -> Value:
    return step.product(x, y) if x.shape == y.shape else _combined(step, x, y, "Scale")


def _combined(step: Step, x: Value, y: Value, kind: str) -> Value:
    """A Bias or Scale of two blobs, the smaller of which is repeated."""
    shape = common_shape(step, x.shape, y.shape)
    if x.shape != shape and y.shape == shape:
        x, y = y, x
    x = tiled(step, x, shape)
    own = (1,) * (len(shape) - len(y.shape)) + y.shape
    axes = [axis for axis, n in enumerate(own) if n != 1] or [0]
    first, last = axes[0], axes[-1] + 1
    while first and own[first - 1] == shape[first - 1]:  # such as a batch of 1, which may become larger
        first -= 1
    y = tiled(step, step.reshape(y, own[first:last]), shape[first:last])
    return step.layer(kind, x, y, **{f"{kind.lower()}_param": {"axis": first}})


@reads("Add", "Sub")
def add(step: Step) -> Value:
    sign = -1 if step.op == "Sub" else 1
    if step.constant(1) is not None:
        return plus_constant(step, step.x, sign * step.weights(1, "terms"))
    if step.constant(0) is not None:
        return plus_constant(step, step.power(step.value(1), scale=sign), step.weights(0, "terms"))
    return summed(step, step.x, step.value(1), sign)


@reads("Mul")
def multiply(step: Step) -> Value:
    if (found := gelu_behind(step)) is not None:
        return found
    for constant, other in ((0, 1), (1, 0)):
        if step.constant(constant) is not None:
            return times_constant(step, step.value(other), step.weights(constant, "factors"))
    return multiplied(step, step.x, step.value(1))


@reads("Div")
def divide(step: Step) -> Value:
    if step.net.forks and (found := _normalized(step)) is not None:
        return found
    if step.constant(1) is not None:
        divisor = step.weights(1, "divisors").astype(np.float64)
        return times_constant(step, step.x, np.float32(1 / divisor))
    inverse = step.power(step.value(1), power=-1)
    if step.constant(0) is not None:
        return times_constant(step, inverse, step.weights(0, "dividends"))
    return multiplied(step, step.x, inverse)


def _normalized(step: Step) -> Value | None:
    """Normalize for x / sqrt(sum of x^2 over the channels + eps), or for x / max(norm, a tiny number)."""
    node, path = step.node_before(1), []
    terms: dict[str, float | None] = {"Add": TINY**2, "Clip": 0}
    while node is not None and node.op in ("Expand", "Clip", "Sqrt", "Add"):
        path.append(node.op)
        if node.op in terms:
            terms[node.op] = number_of(step, node.inputs[1]) if len(list(filter(None, node.inputs))) == 2 else None
        node = step.net.makers.get(node.inputs[0])
    if node is None or node.inputs[0] != step.node.inputs[0] or not node.attributes.get("keepdims", 1):
        return None
    limit, eps = terms["Clip"], terms["Add"]
    norm = re.fullmatch("(Expand )?(Clip )?(ReduceL2|Sqrt (Add )?ReduceSumSquare)", " ".join([*path, node.op]))
    if limit is None or eps is None or not 0 <= limit <= TINY or norm is None:
        return None
    if Step(step.net, node).list_of(1, "axes") != [1]:
        return None
    p = {"across_spatial": False, "channel_shared": True, "eps": eps}
    return step.layer("Normalize", step.x, blobs=[np.ones(())], norm_param=p)


@reads("Sum", "Mean")
def total(step: Step) -> Value:
    terms = [step.value(index) for index in range(len(step.node.inputs))]
    y = functools.reduce(functools.partial(summed, step), terms)
    return step.power(y, scale=1 / len(terms)) if step.op == "Mean" else y


@reads("Max", "Min")
def extreme(step: Step) -> Value:
    """The minimum is the maximum of what has the other sign. One with a single constant is a ReLU."""
    constants = [step.constant(index) for index in range(len(step.node.inputs))]
    single = [float(one.flat[0]) for one in constants if one is not None and one.size == 1]
    if len(constants) == 2 and len(single) == 1:
        x = step.value(0 if constants[0] is None else 1)
        return clipped(step, x, *(single[0], math.inf) if step.op == "Max" else (-math.inf, single[0]))
    sign = 1 if step.op == "Max" else -1
    values = [step.value(index) for index in range(len(constants))]
    shape = common_shape(step, *(value.shape for value in values))
    terms = [step.power(tiled(step, value, shape), scale=sign) for value in values]
    y = step.layer("Eltwise", *terms, eltwise_param={"operation": pb.EltwiseParameter.MAX}) if terms[1:] else terms[0]
    return step.power(y, scale=sign)


@reads("Where")
def where(step: Step) -> Value:
    """A mask of constants, or Softplus as PyTorch exports it: x above a threshold of 20, where it equals x."""
    condition, plus = step.node_before(0), step.node_before(2)
    if condition is not None and plus is not None and (condition.op, plus.op) == ("Greater", "Softplus"):
        same = condition.inputs[0] == plus.inputs[0] == step.node.inputs[1]
        if same and (number_of(step, condition.inputs[1]) or 0) >= 20:
            return step.layer("BNLL", step.value(1))
    mask, constant = step.constant(0), 1 if step.constant(1) is not None else 2
    if mask is None:
        raise step.refuse("Caffe has no conditions", "compute without them, such as by ReLU or by masks of constants")
    chosen = mask == (constant == 2)
    y = times_constant(step, step.value(3 - constant), np.float32(chosen))
    others = np.where(chosen, np.float32(0), step.weights(constant, "values"))
    return plus_constant(step, y, others) if others.any() else y
