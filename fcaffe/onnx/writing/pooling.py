"""Pooling in ONNX with explicit padding, since `ceil_mode` differs between runtimes."""

from __future__ import annotations

import math

import numpy as np

from fcaffe.engines.elementwise import FLT_MAX, FLT_MIN
from fcaffe.engines.windows import Windows
from fcaffe.layers.pooling import AVE, MAX, Pooling
from fcaffe.onnx.writing.graph import Shape, Step, writes

_OF_WINDOWS = (
    "pool kernel_size kernel_h kernel_w kernel_size_3d stride stride_h stride_w stride_3d pad pad_h pad_w pad_3d "
    "global_pooling round_mode avg_include_pad"
)


@writes("Pooling")
def pooling(step: Step) -> str | list[str]:
    step.layer_has(pooling_param=_OF_WINDOWS)
    layer, outputs = step.layer, step.tops[0][2:]
    if len(step.tops) > 1:
        return _with_indices(step, layer.windows, outputs)
    if layer.windows.kernel == step.bottoms[0][2:] and not any(layer.windows.pad) and layer.method in (MAX, AVE):
        return step.op("GlobalMaxPool" if layer.method == MAX else "GlobalAveragePool", step.x)
    return _pool(step, layer, step.bottoms[0], outputs)


@writes("SPP")
def spatial_pyramid(step: Step) -> str:
    step.layer_has(spp_param="pyramid_height pool")
    layer, shape = step.layer, step.bottoms[0]
    levels = []
    for level, bins in zip(layer.levels, layer.bins, strict=True):
        y = _pool(step, level, shape, bins.shape[2:])
        levels.append(y if len(layer.levels) == 1 else step.op("Flatten", y, axis=1))
    return levels[0] if len(levels) == 1 else step.op("Concat", *levels, axis=1)


def _pool(step: Step, layer: Pooling, shape: Shape, outputs: Shape) -> str:
    w = layer.windows
    if layer.method == MAX:
        return _slide(step, "MaxPool", step.x, w, shape, outputs)
    mean = _slide(step, "AveragePool", step.x, w, shape, outputs)
    if layer.method == AVE:
        y = _by_area(step, mean, w, shape, outputs)
        return step.op("Mul", y, step.array(layer.gain, "gain")) if layer.leaves_out_pad else y
    # Stochastic pooling in phase TEST: the sum of the squares over the sum.
    squares = _slide(step, "AveragePool", step.op("Mul", step.x, step.x), w, shape, outputs)
    return step.op("Div", squares, step.plus(mean, FLT_MIN))


def _slide(step: Step, kind: str, x: str, w: Windows, shape: Shape, outputs: Shape) -> str:
    """ONNX's MaxPool or AveragePool, with complete windows.

    Windows behind the end of an axis would need padding as large as the kernel, which runtimes refuse. Their outputs
    are appended as constants.
    """
    sizes = zip(shape[2:], outputs, w.stride, w.pad, strict=True)
    inside = tuple(min(o, -(-(n + p) // s)) for n, o, s, p in sizes)
    pads = _pads(w, shape[2:], inside)
    if kind == "AveragePool" and any(pads):  # some runtimes do not count asymmetric padding
        x = step.op("Pad", x, step.integers([0, 0, *w.pad, 0, 0, *pads[len(w.pad) :]], "pads"), step.array(0, "zero"))
        pads = [0] * len(pads)
    y = step.op(kind, x, kernel_shape=w.kernel, strides=w.stride, pads=pads)
    if inside == outputs:
        return y
    more = [o - i for o, i in zip(outputs, inside, strict=True)]
    nothing = step.array(-FLT_MAX if kind == "MaxPool" else 0, "nothing")
    return step.op("Pad", y, step.integers([*[0] * (len(shape) + 2), *more], "more"), nothing)


def _by_area(step: Step, mean: str, w: Windows, shape: Shape, outputs: Shape) -> str:
    """Correct an average by the window's area.

    Caffe's area includes padding, but nothing beyond it. ONNX's is the whole window, so that the last row and column
    may need a factor.
    """
    area = w.areas(np, shape[2:], outputs)
    if (area == w.size).all():
        return mean
    with np.errstate(divide="ignore"):  # 0 / 0 for a window outside of the image, as in Caffe
        factors = np.float32(w.size) / area
    return step.op("Mul", mean, step.array(factors, "area"))


def _with_indices(step: Step, w: Windows, outputs: Shape) -> list[str]:
    """MaxPool with indices. Caffe's are within a plane, ONNX's within the whole blob."""
    size = step.bottoms[0][2:]
    if any((o - 1) * s - p >= n for n, o, s, p in zip(size, outputs, w.stride, w.pad, strict=True)):
        raise step.refuse("a window lies outside of its bottom, and ONNX has no index for its maximum")
    pads = _pads(w, size, outputs)
    y, where = step.ops("MaxPool", step.x, outputs=2, kernel_shape=w.kernel, strides=w.stride, pads=pads)
    plane = step.integers([math.prod(size)], "plane")
    return [y, step.cast(step.op("Mod", where, plane), "FLOAT")]


def _pads(w: Windows, size: Shape, outputs: Shape) -> list[int]:
    """ONNX's pads, those before each axis and then those behind each, for `outputs` complete windows."""
    return [*w.pad, *(n - p - own for n, p, own in zip(w.padded_size(size, outputs), w.pad, size, strict=True))]
