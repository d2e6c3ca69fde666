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
        x, pads = _padded(step, w, shape, places, LOWEST)
        return step.op("MaxPool", x, kernel_shape=w.kernel, strides=w.stride, pads=pads)
    if layer.method == AVE:
        return _average(step, step.x, w, shape, places)
    # Stochastic pooling in phase TEST: the sum of the squares over the sum.
    squares = _average(step, step.op("Mul", step.x, step.x), w, shape, places)
    mean = _average(step, step.x, w, shape, places)
    return step.op("Div", squares, step.plus(mean, FLT_MIN))


def _with_places(step: Step, w: Windows, places: Shape) -> list[str]:
    """The second top of MAX has the places in the plane; ONNX counts them over all planes."""
    shape = step.bottoms[0]
    pads = _pads(w, shape[2:], places)
    if _windows_outside(w, shape[2:], places):
        raise step.refuse("a window lies wholly outside its bottom, and ONNX has no place for its maximum")
    y, where = step.ops("MaxPool", step.x, outputs=2, kernel_shape=w.kernel, strides=w.stride, pads=pads)
    plane = step.integers([math.prod(shape[2:])], "plane")
    return [y, step.cast(step.op("Mod", where, plane), "FLOAT")]


def _average(step: Step, x: str, w: Windows, shape: Shape, places: Shape) -> str:
    """Caffe divides by the area of the window of which padding is a part, and what lies beyond the padding is not;
    ONNX by the whole window, so the last row and column may need a factor."""
    x, pads = _padded(step, w, shape, places, 0, x)
    y = step.op("AveragePool", x, kernel_shape=w.kernel, strides=w.stride, pads=pads, count_include_pad=1)
    lengths = []
    for n, o, k, s, p in zip(shape[2:], places, w.kernel, w.stride, w.pad, strict=True):
        start = np.arange(o) * s - p
        lengths.append(np.minimum(start + k, n + p) - start)
    area = lengths[0][:, None] * lengths[1][None, :]
    if (area == w.size).all():
        return y
    with np.errstate(divide="ignore"):  # of a window outside the image Caffe has 0 / 0, and so has this
        factors = np.float32(w.size) / area.astype(np.float32)
    return step.op("Mul", y, step.array(factors, "area"))


def _pads(w: Windows, size: Shape, places: Shape) -> list[int]:
    """ONNX's pads, (top, left, bottom, right), with which there are so many places and each window is whole."""
    ends = [
        max(0, (o - 1) * s + k - n - p)
        for n, o, k, s, p in zip(size, places, w.kernel, w.stride, w.pad, strict=True)
    ]
    return [*w.pad, *ends]


def _windows_outside(w: Windows, size: Shape, places: Shape) -> bool:
    """Whether the last window of an axis begins behind its end, so that its padding is as large as the kernel."""
    return any((o - 1) * s - p >= n for n, o, s, p in zip(size, places, w.stride, w.pad, strict=True))


def _padded(
    step: Step, w: Windows, shape: Shape, places: Shape, fill: float, x: str | None = None
) -> tuple[str, list[int]]:
    """The value to pool, and pads for that: padding as large as a kernel, which runtimes refuse, is a node before."""
    x, pads = x or step.x, _pads(w, shape[2:], places)
    if not _windows_outside(w, shape[2:], places):
        return x, pads
    whole = step.integers([0, 0, *pads[:2], 0, 0, *pads[2:]], "pads")
    return step.op("Pad", x, whole, step.array(fill, "fill")), [0, 0, 0, 0]
