"""Sums, products and extremes of blobs and constants.

ONNX repeats axes of length 1. Caffe's Scale and Bias repeat a block of successive axes over the others, and Tile an
axis.
"""

from __future__ import annotations

import copy
import functools
import math

import numpy as np

from fcaffe.onnx.reading.activations import clipped, gelu_behind, match, number_of
from fcaffe.onnx.reading.graph import Made, Shape, Step, Value
from fcaffe.onnx.reading.reorder import tiled
from fcaffe.proto import caffe_pb2 as pb

TINY = 1e-12  # a limit of norms, which keeps a division from being one by 0
Operand = Value | np.ndarray
SAME = 1e-6  # a product of factors this near to 1 is one that undoes another
_MERGED = {"Scale": ["Scale"], "Bias": ["Scale", "InnerProduct", "Convolution"]}  # layers that take one behind them


def _repeated(step: Step, x: Value, y: Operand, kind: str) -> Value:
    """A Bias or Scale of a blob by a blob or a constant. The smaller one is repeated."""
    shape, field = np.broadcast_shapes(x.shape, y.shape), f"{kind.lower()}_param"
    if isinstance(y, Value) and y.shape == shape != x.shape:
        x, y = y, x
    x, own = tiled(step, x, shape), (1,) * (len(shape) - len(y.shape)) + y.shape
    axes = [axis for axis, n in enumerate(own) if n != 1] or [0 if isinstance(y, Value) else len(shape) - 1]
    first, last = axes[0], axes[-1] + 1
    if isinstance(y, np.ndarray):
        step.net.take(math.prod(shape[first:last]))
        block = np.broadcast_to(y.reshape(own[first:last]), shape[first:last])
        return step.layer(kind, x, blobs=[block], **{field: {"axis": first, "num_axes": block.ndim}})
    while first and own[first - 1] == shape[first - 1]:  # such as a batch of 1, which may become larger
        first -= 1
    y = tiled(step, step.reshape(y, own[first:last]), shape[first:last])
    return step.layer(kind, x, y, **{field: {"axis": first}})


def with_constant(step: Step, x: Value, constant: np.ndarray, kind: str) -> Value:
    """A Power, or a Scale or Bias, which is merged with the layer before if that has a blob along the same axes.

    A mask that leaves nothing of a row is refused, for a Softmax of it is no number.
    """
    if kind == "Bias" and constant.ndim and np.isneginf(constant).all(-1).any():
        raise step.refuse("its mask leaves nothing of a row", "leave out such rows, or mask them by a large number")
    if constant.size and (constant == constant.flat[0]).all():
        value = float(constant.flat[0])
        x = tiled(step, x, np.broadcast_shapes(x.shape, constant.shape))
        if kind == "Scale" or x.maker.kind != "InnerProduct":
            return step.power(x, scale=value) if kind == "Scale" else step.power(x, shift=value)
        constant = np.full(x.shape[-1:], value, np.float32)
    y = _repeated(step, x, constant, kind)
    if (merged := _merged(step, y.maker)) is not None:
        return merged
    p, blobs = y.maker.param.bias_param, y.maker.blobs
    if kind == "Bias" and not step.takes("Bias"):
        whole = {"axis": p.axis, "num_axes": p.num_axes, "bias_term": True}
        return step.layer("Scale", y.maker.bottoms[0], blobs=[np.ones_like(blobs[0]), *blobs], scale_param=whole)
    return y


def _merged(step: Step, made: Made) -> Value | None:
    """One layer for a Scale or Bias and the layer before it, if that has a blob along the same axes."""
    before = made.bottoms[0].maker
    if before.kind not in _MERGED[made.kind] or len(before.bottoms) != 1 or len(before.blobs) != 1 or before.fixed:
        return None
    if _block(before) != _block(made):
        return None
    blobs, bottom = [before.blobs[0], made.blobs[0]], before.bottoms[0]
    if made.kind == "Scale":
        blobs = [blobs[0] * blobs[1]]
        if np.abs(blobs[0] - 1).max() <= SAME:
            return bottom
    step.made = [one for one in step.made if one not in (made, before)]
    field, message = next((field, one) for field, one in before.param.ListFields() if field.name.endswith("_param"))
    changed = copy.deepcopy(message)
    changed.ClearField("bias_term")  # which is true by default, but not for a Scale
    if made.kind == "Bias" and before.kind == "Scale":
        changed.bias_term = True
    return step.layer(before.kind, bottom, blobs=blobs, name=before.wanted, **{field.name: changed})


def _block(made: Made) -> tuple[int, Shape]:
    """The first axis of a layer's scales or biases in its top, and their shape."""
    if made.kind in ("Scale", "Bias"):
        return (made.param.scale_param if made.kind == "Scale" else made.param.bias_param).axis, made.blobs[0].shape
    return 1 if made.kind == "Convolution" else len(made.tops[0].shape) - 1, made.blobs[0].shape[:1]


def combined(step: Step, x: Operand, y: Operand, kind: str, sign: float = 1) -> Value:
    """The product of blobs and constants for the kind Scale, and x + sign * y for the kind Bias."""
    if isinstance(x, Value) and isinstance(y, Value) and x.shape == y.shape:
        return step.product(x, y) if kind == "Scale" else step.sum(x, y, coefficients=(1, sign))
    if sign != 1:
        y = step.power(y, scale=sign) if isinstance(y, Value) else y * np.float32(sign)
    if not isinstance(x, Value):
        x, y = y, x
    assert isinstance(x, Value)
    return _repeated(step, x, y, kind) if isinstance(y, Value) else with_constant(step, x, y, kind)


def arithmetic(step: Step) -> Value:
    found = gelu_behind(step) or _normalized(step)
    if found is not None:
        step.seen.update(range(len(step.node.inputs)))
        return found
    x = step.value(0) if step.constant(0) is None or step.constant(1) is not None else step.weights(0, "operands")
    y: Operand = step.value(1) if step.constant(1) is None else step.weights(1, "operands")
    if step.op == "Div":
        y = step.power(y, power=-1) if isinstance(y, Value) else np.float32(1 / y.astype(np.float64))
    return combined(step, x, y, "Scale" if step.op in ("Mul", "Div") else "Bias", -1 if step.op == "Sub" else 1)


_SQUARES = ("ReduceSumSquare", "x")
_NORM = [("ReduceL2", "x"), ("Sqrt", [_SQUARES, ("Add", _SQUARES, "eps")])]
_LIMITED = [_NORM, ("Clip", _NORM, "limit")]
_NORMALIZED = ("Div", "x", [_LIMITED, ("Expand", _LIMITED)])


def _normalized(step: Step) -> Value | None:
    """Normalize for x / sqrt(sum of x^2 over the channels + eps), or for x / max(norm, a tiny number)."""
    found = match(step, _NORMALIZED, step.node.outputs[0], {})
    if found is None or ("Clip" in found and any(step.net.makers[found["Clip"]].inputs[2:])):
        return None
    limit = number_of(step, found["limit"]) if "limit" in found else 0
    eps = number_of(step, found["eps"]) if "eps" in found else TINY**2
    node = step.net.makers[found.get("ReduceL2") or found["ReduceSumSquare"]]
    if limit is None or eps is None or not 0 <= limit <= TINY or not node.attributes.get("keepdims", 1):
        return None
    if Step(step.net, node).list_of(1, "axes") != [1]:
        return None
    p = {"across_spatial": False, "channel_shared": True, "eps": eps}
    return step.layer_if_taken("Normalize", step.x, blobs=[np.ones(())], norm_param=p)


def total(step: Step) -> Value:
    terms = [step.value(index) for index in range(len(step.node.inputs))]
    y = functools.reduce(lambda one, other: combined(step, one, other, "Bias"), terms)
    return step.power(y, scale=1 / len(terms)) if step.op == "Mean" else y


def extreme(step: Step) -> Value:
    """The minimum is the maximum of what has the other sign. One with a single constant is a ReLU."""
    constants = [step.constant(index) for index in range(len(step.node.inputs))]
    single = [float(one.flat[0]) for one in constants if one is not None and one.size == 1]
    if len(constants) == 2 and len(single) == 1:
        x = step.value(0 if constants[0] is None else 1)
        return clipped(step, x, *(single[0], math.inf) if step.op == "Max" else (-math.inf, single[0]))
    sign = 1 if step.op == "Max" else -1
    values = [step.value(index) for index in range(len(constants))]
    shape = np.broadcast_shapes(*(value.shape for value in values))
    terms = [step.power(tiled(step, value, shape), scale=sign) for value in values]
    y = step.layer("Eltwise", *terms, eltwise_param={"operation": pb.EltwiseParameter.MAX}) if terms[1:] else terms[0]
    return step.power(y, scale=sign)


def where(step: Step) -> Value:
    """A mask of constants, or Softplus as PyTorch exports it: x above a threshold of 20, where it equals x."""
    softplus = match(step, ("Where", ("Greater", "x", "limit"), "x", ("Softplus", "x")), step.node.outputs[0], {})
    if softplus and (number_of(step, softplus["limit"]) or 0) >= 20:
        step.seen.update(range(3))
        return step.layer("BNLL", step.value(1))
    mask, constant = step.constant(0), 1 if step.constant(1) is not None else 2
    if mask is None:
        raise step.refuse("Caffe has no conditions", "compute without them, such as by ReLU or by masks of constants")
    chosen = mask == (constant == 2)
    y = with_constant(step, step.value(3 - constant), np.float32(chosen), "Scale")
    others = np.where(chosen, np.float32(0), step.weights(constant, "values"))
    return with_constant(step, y, others, "Bias") if others.any() else y


def prelu(step: Step) -> Value:
    """A PReLU for a slope for each channel, or one for all; else ReLU(x) - slope * ReLU(-x)."""
    slope, x = step.weights(1, "slopes"), step.x
    if slope.size == 1 and len(x.shape) > 1:
        return step.layer("PReLU", x, blobs=[slope.reshape(())], prelu_param={"channel_shared": True})
    own = (1,) * (len(x.shape) - slope.ndim) + slope.shape
    if len(x.shape) > 1 and own == (1, x.shape[1], *(1,) * (len(x.shape) - 2)):
        return step.layer("PReLU", x, blobs=[slope.reshape(-1)])
    x = tiled(step, x, np.broadcast_shapes(x.shape, slope.shape))
    negative = step.layer("ReLU", step.power(x, scale=-1))
    return step.sum(step.layer("ReLU", x), with_constant(step, negative, -slope, "Scale"))
