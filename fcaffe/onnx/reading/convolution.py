"""Convolutions and inner products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fcaffe.onnx.reading.arithmetic import Operand, combined
from fcaffe.onnx.reading.graph import Step, Value, sizes
from fcaffe.onnx.reading.load import as_float
from fcaffe.onnx.reading.reorder import permuted


def convolution(step: Step) -> Value:
    """A layer that pads both sides by the larger of the paddings.

    What a side has too much is made up for by zeros on that side of the kernel. They let a Convolution begin, or end,
    with zeros that count for nothing. They make the output of a Deconvolution longer by what its padding cuts off.
    """
    x, weights, group, transposed = step.x, step.weights(1, "weights"), step.attribute("group"), step.op != "Conv"
    count = len(x.shape) - 2
    strides, dilations = each(step, "strides", count), each(step, "dilations", count)
    kernel = spread(weights.shape[2:], dilations)
    if (*step.attribute("kernel_shape", weights.shape[2:]),) != weights.shape[2:]:
        raise step.error(f"its kernel_shape is {step.attribute('kernel_shape')}, and its weights are {weights.shape}")
    if transposed:
        begins, ends = _transposed_padding(step, kernel, strides)
    else:
        begins, ends = padding(step, kernel, strides)
    if x.unpadded is not None and not transposed:
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
    return step.layer("Deconvolution" if transposed else "Convolution", x, blobs=blobs, convolution_param=p)


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
    size, count = step.x.shape[2:], len(step.x.shape) - 2
    auto, pads = step.attribute("auto_pad"), list(step.attribute("pads", [0] * 2 * count))
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        windows = zip(size, step.shape[2:], kernel, strides, strict=True)
        totals = [(more - 1) * s + k - n for n, more, k, s in windows]
        if min(totals) < 0 and step.op != "Conv":
            raise step.refuse("runtimes differ in where its windows begin by auto_pad", "export it with pads")
        return _divided([max(0, total) for total in totals], auto == "SAME_UPPER")
    return ([0] * count, [0] * count) if auto == "VALID" else (pads[:count], pads[count:])


def _transposed_padding(step: Step, kernel: Sequence[int], strides: list[int]) -> tuple[list[int], list[int]]:
    """The padding that a ConvTranspose cuts off. It follows from the size of the output if that is given."""
    size, count = step.x.shape[2:], len(step.x.shape) - 2
    more = step.attribute("output_padding", [0] * count)
    if step.attribute("output_shape") is None and step.attribute("auto_pad") in ("NOTSET", "VALID"):
        begins, ends = padding(step, kernel, strides)
        return begins, [end - one for end, one in zip(ends, more, strict=True)]
    if any(more) and step.attribute("output_shape") is None:
        raise step.refuse("runtimes differ in its output_padding with auto_pad", "export it with pads")
    step.attribute("pads")  # which then are without effect
    windows = zip(size, step.shape[2:], kernel, strides, more, strict=True)
    totals = [(n - 1) * s + k + one - new for n, new, k, s, one in windows]
    begins, ends = _divided([max(0, total) for total in totals], step.attribute("auto_pad") == "SAME_UPPER")
    return begins, [min(end, total) - one for end, total, one in zip(ends, totals, more, strict=True)]


def _divided(totals: list[int], upper: bool) -> tuple[list[int], list[int]]:
    """Halves of numbers; the larger ones are the second ones for `upper`."""
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    return (less, more) if upper else (more, less)


def gemm(step: Step) -> Value:
    """alpha * A * B + beta * C. A constant factor takes alpha."""
    factors = []
    for index, name in enumerate(("transA", "transB")):
        x, exchange = step.known(index), bool(step.attribute(name))
        if isinstance(x, np.ndarray):
            factors.append(as_float(x).T if exchange else as_float(x))
        else:
            factors.append(swapped(step, x) if exchange else x)
    alpha, beta = step.attribute("alpha"), step.attribute("beta")
    held = next((i for i, x in enumerate(factors) if isinstance(x, np.ndarray)), None)
    if held is not None:
        factors[held] = factors[held] * np.float32(alpha)
    y = multiplied(step, *factors)
    y = y if held is not None else step.power(y, scale=alpha)
    if not step.has(2) or not beta:
        step.seen.add(2)
        return y
    c = step.known(2)
    c = as_float(c) * np.float32(beta) if isinstance(c, np.ndarray) else step.power(c, scale=beta)
    return combined(step, y, c, "Bias")


def matmul(step: Step) -> Value:
    a, b = (x if isinstance(x, Value) else as_float(x) for x in (step.known(0), step.known(1)))
    return multiplied(step, a, b)


def multiplied(step: Step, a: Operand, b: Operand) -> Value:
    """An InnerProduct if a factor is a constant matrix; else a MatMul, a layer of a fork."""
    a, b = _matrices(step, a, row=True), _matrices(step, b, row=False)
    if isinstance(b, np.ndarray) and b.ndim == 2 and isinstance(a, Value):
        flat = len(a.shape) == 2 and a.maker.kind == "Flatten"  # which an InnerProduct does, too
        return _inner_product(step, a.maker.bottoms[0] if flat else a, b.T, len(a.shape) - 1)
    if isinstance(a, np.ndarray) and a.ndim == 2 and isinstance(b, Value):
        return swapped(step, _inner_product(step, swapped(step, b), a, -1))
    return product(step, *(x if isinstance(x, Value) else step.held(x) for x in (a, b)))


def _matrices(step: Step, x: Operand, row: bool) -> Operand:
    """A factor with two axes or more: a vector is a row, or a column. Constants lose first axes of length 1."""
    shape = x.shape if len(x.shape) > 1 else (1, *x.shape) if row else (*x.shape, 1)
    if isinstance(x, Value):
        return step.reshape(x, shape)
    return x.reshape(shape[-2:] if math.prod(shape[:-2]) == 1 else shape)


def swapped(step: Step, x: Value) -> Value:
    """x with its last two axes exchanged."""
    *batch, rows, columns = range(len(x.shape))
    return permuted(step, x, [*batch, columns, rows])


def product(step: Step, a: Value, b: Value) -> Value:
    """The product of two blobs by a MatMul, which can exchange the last two axes of its factors."""
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
