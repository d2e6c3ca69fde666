"""Pooling in ONNX, whose `ceil_mode` means other windows in other runtimes: here all padding is given in numbers."""

from __future__ import annotations

import math

import numpy as np

from fcaffe.engines.pooling import LOWEST
from fcaffe.engines.windows import Windows
from fcaffe.layers.pooling import AVE, MAX, Pooling
from fcaffe.layers.spp import SPP
from fcaffe.tools.onnx.graph import Shape, Step, writes

FLT_MIN = 1.17549435e-38


@writes("Pooling")
def pooling(step: Step) -> list[str]:
    layer, places = step.layer, step.tops[0][2:]
    assert isinstance(layer, Pooling)
    if len(step.tops) > 1:
        return _with_places(step, layer.windows, places)
    if layer.windows.kernel == step.bottoms[0][2:] and layer.windows.pad == (0, 0) and layer.method in (MAX, AVE):
        return [step.op("GlobalMaxPool" if layer.method == MAX else "GlobalAveragePool", step.x)]
    return [_pool(step, layer, step.bottoms[0], places)]


@writes("SPP")
def spatial_pyramid(step: Step) -> list[str]:
    layer, shape = step.layer, step.bottoms[0]
    assert isinstance(layer, SPP)
    levels = []
    for level, bins in zip(layer.levels, layer.bins, strict=True):
        y = _pool(step, level, shape, bins.shape[2:])
        levels.append(y if len(layer.levels) == 1 else step.op("Flatten", y, axis=1))
    return levels if len(levels) == 1 else [step.op("Concat", *levels, axis=1)]


def _pool(step: Step, layer: Pooling, shape: Shape, places: Shape) -> str:
    w = layer.windows
    if layer.method == MAX:
        return _slide(step, "MaxPool", step.x, w, shape, places)
    mean = _slide(step, "AveragePool", step.x, w, shape, places)
    if layer.method == AVE:
        return _by_area(step, mean, w, shape, places)
    # Stochastic pooling in phase TEST: the sum of the squares over the sum.
    squares = _slide(step, "AveragePool", step.op("Mul", step.x, step.x), w, shape, places)
    return step.op("Div", squares, step.plus(mean, FLT_MIN))


def _slide(step: Step, kind: str, x: str, w: Windows, shape: Shape, places: Shape) -> str:
    """MaxPool or AveragePool of ONNX, with whole windows. Those that begin behind the end of an axis would need padding
    as large as the kernel, which runtimes refuse: what they give is written behind the others."""
    sizes = zip(shape[2:], places, w.stride, w.pad, strict=True)
    inside = tuple(min(o, -(-(n + p) // s)) for n, o, s, p in sizes)
    pads = _pads(w, shape[2:], inside)
    if kind == "AveragePool" and any(pads):  # not all runtimes count padding that is not the same on both sides
        x = step.op("Pad", x, step.integers([0, 0, *pads[:2], 0, 0, *pads[2:]], "pads"), step.array(0, "zero"))
        pads = [0, 0, 0, 0]
    y = step.op(kind, x, kernel_shape=w.kernel, strides=w.stride, pads=pads)
    if inside == places:
        return y
    more = [o - i for o, i in zip(places, inside, strict=True)]
    nothing = step.array(LOWEST if kind == "MaxPool" else 0, "nothing")
    return step.op("Pad", y, step.integers([0, 0, 0, 0, 0, 0, *more], "more"), nothing)


def _by_area(step: Step, mean: str, w: Windows, shape: Shape, places: Shape) -> str:
    """Caffe divides by the area of the window of which padding is a part, and what lies beyond the padding is not;
    ONNX by the whole window, so the last row and column may need a factor."""
    lengths = []
    for n, o, k, s, p in zip(shape[2:], places, w.kernel, w.stride, w.pad, strict=True):
        start = np.arange(o) * s - p
        lengths.append(np.minimum(start + k, n + p) - start)
    area = lengths[0][:, None] * lengths[1][None, :]
    if (area == w.size).all():
        return mean
    with np.errstate(divide="ignore"):  # of a window outside the image Caffe has 0 / 0, and so has this
        factors = np.float32(w.size) / area.astype(np.float32)
    return step.op("Mul", mean, step.array(factors, "area"))


def _with_places(step: Step, w: Windows, places: Shape) -> list[str]:
    """The second top of MAX has the places in the plane; ONNX counts them over all planes."""
    size = step.bottoms[0][2:]
    if any((o - 1) * s - p >= n for n, o, s, p in zip(size, places, w.stride, w.pad, strict=True)):
        raise step.refuse("a window lies wholly outside its bottom, and ONNX has no place for its maximum")
    pads = _pads(w, size, places)
    y, where = step.ops("MaxPool", step.x, outputs=2, kernel_shape=w.kernel, strides=w.stride, pads=pads)
    plane = step.integers([math.prod(size)], "plane")
    return [y, step.cast(step.op("Mod", where, plane), "FLOAT")]


def _pads(w: Windows, size: Shape, places: Shape) -> list[int]:
    """ONNX's pads, (top, left, bottom, right), with which there are so many places and each window is whole."""
    ends = [
        max(0, (o - 1) * s + k - n - p) for n, o, k, s, p in zip(size, places, w.kernel, w.stride, w.pad, strict=True)
    ]
    return [*w.pad, *ends]
