"""Convolutions and inner products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fcaffe.onnx.reading.arithmetic import with_constant
from fcaffe.onnx.reading.graph import Step, Value, reads, sizes
from fcaffe.onnx.reading.reorder import permuted


@reads("Conv", "ConvTranspose")
def convolution(step: Step) -> Value:
    """A layer that pads both sides by the larger of the paddings.

    What a side has too much is made up for by zeros on that side of the kernel. They let a Convolution begin, or end,
    with zeros that count for nothing. They make the output of a Deconvolution longer by what its padding cuts off.
    """
    x, weights, group, transposed = step.x, step.weights(1, "weights"), step.attribute("group", 1), step.op != "Conv"
    count = len(x.shape) - 2
    strides, dilations = each(step, "strides", count), each(step, "dilations", count)
    begins, ends = padding(step, spread(weights.shape[2:], dilations), strides)
    if transposed:
        if step.attribute("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in step.node.attributes:
            raise step.refuse("its padding follows from the size of its output", "export it with numbers as padding")
        ends = [end - more for end, more in zip(ends, step.attribute("output_padding", [0] * count), strict=True)]
    elif x.unpadded is not None:
        x, first, last = x.unpadded
        begins, ends = ([a + b for a, b in zip(*two, strict=True)] for two in ((begins, first), (ends, last)))
    if min(*begins, *ends) < 0 and not transposed:
        raise step.refuse(f"its padding {begins}, {ends} is negative", "crop the input instead")
    pads = [max(begin, end, 0) for begin, end in zip(begins, ends, strict=True)]
    if begins != pads or ends != pads:
        before, behind = ([pad - one for pad, one in zip(pads, side, strict=True)] for side in (begins, ends))
        weights, dilations = _widened(step, weights, dilations, before, behind), [1] * count
    p: dict[str, Any] = {"num_output": weights.shape[1] * group if transposed else len(weights)}
    p.update(sizes("kernel", weights.shape[2:]), **sizes("stride", strides), **sizes("pad", pads))
    if any(dilation != 1 for dilation in dilations):
        p["dilation"] = dilations if len(set(dilations)) > 1 else dilations[:1]
    if group > 1:
        p["group"] = group
    blobs = [weights]
    if step.has(2):
        blobs.append(step.weights(2, "biases").reshape(-1))
    else:
        p["bias_term"] = False
    kind = "Deconvolution" if transposed else "Convolution"
    depthwise = not transposed and 1 < group == x.shape[1] == len(weights) and count == 2
    if depthwise and step.takes("ConvolutionDepthwise", convolution_param=p):
        kind = "ConvolutionDepthwise"
    return step.layer(kind, x, blobs=blobs, convolution_param=p)


def _widened(
    step: Step, weights: np.ndarray, dilations: list[int], before: Sequence[int], behind: Sequence[int]
) -> np.ndarray:
    """Kernels with so many zeros around them, and with zeros for their gaps."""
    kernel = spread(weights.shape[2:], dilations)
    wide = step.zeros(*weights.shape[:2], *(a + n + b for a, n, b in zip(before, kernel, behind, strict=True)))
    whole = [slice(None), slice(None)]
    whole += [slice(a, a + n, gap) for a, n, gap in zip(before, kernel, dilations, strict=True)]
    wide[tuple(whole)] = weights
    return wide


def each(step: Step, name: str, count: int) -> list[int]:
    """A positive number for each spatial axis, which is 1 by default."""
    values = list(step.attribute(name, [1] * count))
    if len(values) != count or min(values) < 1:
        raise step.error(f"its {name} are {values}, and it needs {count} positive numbers")
    return values


def spread(kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    return [dilation * (k - 1) + 1 for k, dilation in zip(kernel, dilations, strict=True)]


def padding(step: Step, kernel: Sequence[int], strides: list[int]) -> tuple[list[int], list[int]]:
    """The padding at the beginning and at the end of each axis for windows with this kernel."""
    auto, size, count = step.attribute("auto_pad", "NOTSET"), step.x.shape[2:], len(step.x.shape) - 2
    pads = list(step.attribute("pads", [0] * 2 * count)) if auto == "NOTSET" else [0] * 2 * count
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(size, kernel, strides, strict=True)]
        less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
        pads = less + more if auto == "SAME_UPPER" else more + less
    if len(pads) != 2 * count:
        raise step.error(f"it has {len(pads)} pads for {count} spatial axes")
    return pads[:count], pads[count:]


@reads("Gemm")
def gemm(step: Step) -> Value:
    if step.attribute("transA", 0) or step.constant(0) is not None:
        raise step.refuse("its first factor is transposed or constant", "multiply x by a constant from the right")
    weights, x = step.weights(1, "weights"), step.x
    weights = (weights if step.attribute("transB", 0) else weights.T) * np.float32(step.attribute("alpha", 1.0))
    x = x.maker.bottoms[0] if x.maker.kind == "Flatten" else x  # an InnerProduct flattens, too
    y = _inner_product(step, x, weights, 1)
    if not step.has(2):
        return y
    return with_constant(step, y, step.weights(2, "biases") * np.float32(step.attribute("beta", 1.0)), "Bias")


@reads("MatMul")
def matmul(step: Step) -> Value:
    """An InnerProduct if a factor is a constant matrix; else a MatMul, a layer of a fork."""
    left, right = (step.constant(index) for index in (0, 1))
    if right is not None and right.ndim == 2:
        return _inner_product(step, step.x, step.weights(1, "weights").T, max(0, len(step.x.shape) - 1))
    if left is not None and left.ndim == 2 and len(step.value(1).shape) > 1:
        columns = _inner_product(step, swapped(step, step.value(1)), step.weights(0, "weights"), -1)
        return swapped(step, columns)
    return product(step, step.value(0), step.value(1))


def swapped(step: Step, x: Value) -> Value:
    """x with its last two axes exchanged."""
    *batch, rows, columns = range(len(x.shape))
    return permuted(step, x, [*batch, columns, rows])


def product(step: Step, a: Value, b: Value) -> Value:
    """The product of two blobs by a MatMul, which can exchange the last two axes of its factors."""
    a = step.reshape(a, (1, *a.shape) if len(a.shape) == 1 else a.shape)
    b = step.reshape(b, (*b.shape, 1) if len(b.shape) == 1 else b.shape)
    factors, p = [], {}
    for one, field in ((a, "transpose_a"), (b, "transpose_b")):
        x, order = one.transposed or (one, [])
        if order == [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]:
            p[field], one = True, x
        factors.append(one)
    y = step.layer_if_taken("MatMul", *factors, matmul_param=p)
    if y is None:
        raise step.refuse(
            f"it multiplies two blobs as matrices, as attention does, and {step.net.target.name} takes no MatMul",
            "allow it by --forks or another target, use a model without attention, or end it before by --cut",
        )
    return y


@reads("Einsum")
def einsum(step: Step) -> Value:
    """A product of two blobs: axes of both and of the result count matrices, those of the operands alone are summed."""
    terms, _, result = step.attribute("equation").replace(" ", "").partition("->")
    names = terms.split(",")
    if len(names) != 2 or not all(part.isalpha() and len(set(part)) == len(part) for part in (*names, result)):
        raise step.refuse("it is no product of two blobs with named axes", "write it by MatMul and Transpose")
    (a, b), values = names, (step.value(0), step.value(1))
    batch, summed = ([axis for axis in a if axis in b and (axis in result) == kept] for kept in (True, False))
    rows, columns = ([axis for axis in one if axis not in other] for one, other in ((a, b), (b, a)))
    if {*rows, *columns} - {*result}:
        raise step.refuse("it adds up an axis of one operand", "use ReduceSum before it")
    lengths = {
        axis: n for part, value in zip(names, values, strict=True) for axis, n in zip(part, value.shape, strict=True)
    }
    factors = []
    for part, value, blocks in zip(names, values, ((batch, rows, summed), (batch, summed, columns)), strict=True):
        moved = permuted(step, value, [part.index(axis) for block in blocks for axis in block])
        shape = [math.prod(lengths[axis] for axis in block) for block in blocks]
        factors.append(step.reshape(moved, (*(lengths[axis] for axis in batch), *shape[1:])))
    order = [*batch, *rows, *columns]
    y = step.reshape(product(step, *factors), tuple(lengths[axis] for axis in order))
    return permuted(step, y, [order.index(axis) for axis in result])


def _inner_product(step: Step, x: Value, weights: np.ndarray, axis: int) -> Value:
    """The product of the axes from `axis` on with weights (outputs, inputs)."""
    p = {"num_output": len(weights), "bias_term": False, **({"axis": axis} if axis != 1 else {})}
    return step.layer("InnerProduct", x, blobs=[weights], inner_product_param=p)
