"""Convolutions and inner products."""

from __future__ import annotations

import numpy as np

from fcaffe.tools.onnx.reading.arithmetic import plus_constant
from fcaffe.tools.onnx.reading.graph import Step, Value, reads
from fcaffe.tools.onnx.reading.windows import each, padding, sizes, spread


@reads("Conv")
def convolution(step: Step) -> Value:
    weights, count, group = step.weights(1, "weights"), len(step.x.shape) - 2, step.attribute("group", 1)
    strides, dilations = each(step, "strides", count), each(step, "dilations", count)
    begins, ends = padding(step, spread(weights.shape[2:], dilations), strides)
    x = step.x
    if x.unpadded is not None:
        x, first, last = x.unpadded
        begins, ends = ([a + b for a, b in zip(*two, strict=True)] for two in ((begins, first), (ends, last)))
    if min(*begins, *ends) < 0:
        raise step.refuse(f"its padding {begins}, {ends} is negative", "crop the input instead")
    pads = [max(begin, end) for begin, end in zip(begins, ends, strict=True)]
    kind, p = "Convolution", {"num_output": len(weights), **sizes("stride", strides)}
    if step.net.forks and 1 < group == x.shape[1] == len(weights) and count == 2:
        kind = "ConvolutionDepthwise"
    return _slid(step, kind, x, weights, p, pads, begins, ends, dilations)


@reads("ConvTranspose")
def deconvolution(step: Step) -> Value:
    x, weights = step.x, step.weights(1, "weights")
    count = len(x.shape) - 2
    strides, dilations = each(step, "strides", count), each(step, "dilations", count)
    if step.attribute("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in step.node.attributes:
        raise step.refuse("its padding follows from the size of its output", "export it with numbers as padding")
    begins, ends = padding(step, weights.shape[2:], strides)
    more = step.attribute("output_padding", [0] * count)
    ends = [end - one for end, one in zip(ends, more, strict=True)]
    pads = [max(begin, end, 0) for begin, end in zip(begins, ends, strict=True)]
    p = {"num_output": weights.shape[1] * step.attribute("group", 1), **sizes("stride", strides)}
    return _slid(step, "Deconvolution", x, weights, p, pads, begins, ends, dilations)


def _slid(
    step: Step,
    kind: str,
    x: Value,
    weights: np.ndarray,
    p: dict[str, object],
    pads: list[int],
    begins: list[int],
    ends: list[int],
    dilations: list[int],
) -> Value:
    """A convolution with the padding `begins` and `ends`, of which Caffe's `pads` on both sides are the larger.

    What a side has too much is made up for by zeros on that side of the kernel. They let a Convolution begin, or end,
    with zeros that count for nothing. They make the output of a Deconvolution longer by what `pads` cuts off.
    """
    before = [pad - begin for pad, begin in zip(pads, begins, strict=True)]
    behind = [pad - end for pad, end in zip(pads, ends, strict=True)]
    if any((*before, *behind)):
        kernel = spread(weights.shape[2:], dilations)
        wide = step.zeros(*weights.shape[:2], *(a + n + b for a, n, b in zip(before, kernel, behind, strict=True)))
        inside = [slice(a, a + n, gap) for a, n, gap in zip(before, kernel, dilations, strict=True)]
        whole = (slice(None), slice(None), *inside)
        wide[whole] = weights
        weights, dilations = wide, [1] * len(dilations)
    p = {**p, **sizes("kernel", weights.shape[2:]), **sizes("pad", pads)}
    if any(dilation != 1 for dilation in dilations):
        p["dilation"] = dilations if len(set(dilations)) > 1 else dilations[0]
    if (group := step.attribute("group", 1)) > 1:
        p["group"] = group
    blobs = [weights]
    if step.has(2):
        blobs.append(step.weights(2, "biases").reshape(-1))
    else:
        p["bias_term"] = False
    return step.layer(kind, x, blobs=blobs, convolution_param=p)


@reads("Gemm")
def gemm(step: Step) -> Value:
    if step.attribute("transA", 0) or step.constant(0) is not None:
        raise step.refuse("its first factor is transposed or constant", "multiply x by a constant from the right")
    weights, x = step.weights(1, "weights"), step.x
    weights = (weights if step.attribute("transB", 0) else weights.T) * np.float32(step.attribute("alpha", 1.0))
    x = x.maker.bottoms[0] if x.maker.kind == "Flatten" else x  # an InnerProduct flattens, too
    y = inner_product(step, x, weights, 1)
    if not step.has(2):
        return y
    return plus_constant(step, y, step.weights(2, "biases") * np.float32(step.attribute("beta", 1.0)))


@reads("MatMul")
def matmul(step: Step) -> Value:
    matrix = step.constant(1)
    if matrix is None and step.constant(0) is None:
        raise step.refuse(
            "it multiplies two matrices that both depend on the input, as attention does",
            "Caffe has products with constant matrices only; use a model without attention, or cut it before",
        )
    if matrix is None or matrix.ndim != 2:
        raise step.refuse("its second factor is no constant matrix", "multiply x by a constant matrix from the right")
    return inner_product(step, step.x, step.weights(1, "weights").T, max(0, len(step.x.shape) - 1))


def inner_product(step: Step, x: Value, weights: np.ndarray, axis: int) -> Value:
    """The product of the axes from `axis` on with weights (outputs, inputs)."""
    p = {"num_output": len(weights), "bias_term": False, **({"axis": axis} if axis != 1 else {})}
    return step.layer("InnerProduct", x, blobs=[weights], inner_product_param=p)
