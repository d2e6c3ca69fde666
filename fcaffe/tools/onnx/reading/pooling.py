"""Pooling.

Caffe's windows begin at -pad, as ONNX's do, and may end beyond the image. So whatever the padding at the end is,
Caffe's pooling has ONNX's windows if their number is the same: rounded up, Caffe's default, or down (`round_mode:
FLOOR`). For maxima that is all. Averages are divided by different areas, which a Scale makes up for.
"""

from __future__ import annotations

import math

import numpy as np

from fcaffe.tools.onnx.reading.arithmetic import times_constant
from fcaffe.tools.onnx.reading.graph import Step, Value, reads
from fcaffe.tools.onnx.reading.reductions import global_pool
from fcaffe.tools.onnx.reading.reorder import padded
from fcaffe.tools.onnx.reading.windows import each, padding, sizes

Windows = tuple[int, int, int, int, int]  # along an axis: its size, kernel, stride, padding at its begin and its end
LOWEST = float(np.finfo(np.float32).min)


@reads("GlobalAveragePool", "GlobalMaxPool")
def global_pooling(step: Step) -> Value:
    shape = step.x.shape
    flat = step.reshape(step.x, (*shape[:2], 1, math.prod(shape[2:]))) if len(shape) != 4 else step.x
    y = global_pool(step, flat, "AVE" if step.op == "GlobalAveragePool" else "MAX")
    return step.reshape(y, (*shape[:2], *(1,) * (len(shape) - 2)))


@reads("MaxPool", "AveragePool")
def pooling(step: Step) -> Value:
    x, maximum, counted = step.x, step.op == "MaxPool", step.attribute("count_include_pad", 0)
    if len(x.shape) != 4:
        raise step.refuse(f"its input of shape {x.shape} is no image", "pool images (N, C, H, W)")
    if any(step.node.outputs[1:]) or max(each(step, "dilations", 2)) > 1:
        raise step.refuse("it gives indices, or has gaps in its windows", "use dilation 1, and no indices")
    kernel, strides = each(step, "kernel_shape", 2), each(step, "strides", 2)
    begins, ends = padding(step, kernel, strides)
    if x.unpadded is not None and not maximum and not any((*begins, *ends)):
        counted, (x, begins, ends) = 1, x.unpadded
    windows = list(zip(x.shape[2:], kernel, strides, begins, ends, strict=True))
    counts = [_count(step, *one) for one in windows]
    p = {"pool": "MAX" if maximum else "AVE", **sizes("kernel", kernel), **sizes("stride", strides)}
    areas = _areas(windows, counts, ends if counted else None)
    y = None
    if all(begin < k for begin, k in zip(begins, kernel, strict=True)):
        y = _pooled(step, x, {**p, **sizes("pad", begins)}, counts)
    if y is None:
        x = padded(step, x, [0, 0, *begins], [0, 0, *ends], LOWEST if maximum else 0)
        windows = [(n + begin + end, k, stride, 0, 0) for n, k, stride, begin, end in windows]
        y = _pooled(step, x, p, counts)
    if y is None:
        raise step.refuse(f"Caffe's windows do not give {counts} outputs", "pad symmetrically")
    if maximum:
        return y
    step.net.take(areas.size)
    own = _areas(windows, counts, [begin for *_, begin, _ in windows])
    return y if (own == areas).all() else times_constant(step, y, np.float32(own / np.maximum(areas, 1)))


def _count(step: Step, n: int, kernel: int, stride: int, begin: int, end: int) -> int:
    """ONNX's number of windows: with ceil_mode none begins in the padding at the end."""
    more = (stride - 1) * step.attribute("ceil_mode", 0)
    count = int((n + begin + end - kernel + more) // stride + 1)
    return count - 1 if more and (count - 1) * stride >= n + begin else count


def _pooled(step: Step, x: Value, p: dict[str, object], counts: list[int]) -> Value | None:
    """A Pooling with so many windows, or None if Caffe has none."""
    for mode in ({}, {"round_mode": "FLOOR"}):
        y = step.layer("Pooling", x, pooling_param={**p, **mode})
        if list(y.shape[2:]) == counts:
            return y
    return None


def _areas(windows: list[Windows], counts: list[int], more: list[int] | None) -> np.ndarray:
    """The area of each window within the image, or within the padding too if `more` has that at the end."""
    lengths = []
    for axis, ((n, k, stride, begin, _), count) in enumerate(zip(windows, counts, strict=True)):
        start = np.arange(count) * stride - begin
        end = np.minimum(start + k, n + (more[axis] if more is not None else 0))
        lengths.append(end - (start if more is not None else np.maximum(start, 0)))
    return np.outer(*lengths).astype(np.float64)
