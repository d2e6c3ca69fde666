"""Pooling, and operators that reduce axes.

Caffe's windows begin at -pad, as ONNX's do, and may end beyond the image. So whatever the padding at the end is,
Caffe's pooling has ONNX's windows if their number is the same: rounded up, Caffe's default, or down (`round_mode:
FLOOR`). For maxima that is all. Averages are divided by different areas, which a Scale makes up for.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.onnx.reading.arithmetic import with_constant
from fcaffe.onnx.reading.convolution import each, padding
from fcaffe.onnx.reading.graph import Step, Value, reads, sizes
from fcaffe.onnx.reading.reorder import padded, permuted
from fcaffe.onnx.shape import REDUCTIONS

Windows = tuple[int, int, int, int, int]  # along an axis: its size, kernel, stride, padding at its begin and its end
_NOT_POOLED = (1, 1, 0, 0)


@reads("MaxPool", "AveragePool")
def pooling(step: Step) -> Value:
    x, maximum, counted = step.x, step.op == "MaxPool", step.attribute("count_include_pad", 0)
    axes = len(x.shape) - 2
    if any(step.node.outputs[1:]) or max(each(step, "dilations", axes), default=1) > 1:
        raise step.refuse("it gives indices, or has gaps in its windows", "use dilation 1, and no indices")
    kernel, strides = each(step, "kernel_shape", axes), each(step, "strides", axes)
    begins, ends = padding(step, kernel, strides)
    if x.unpadded is not None and not maximum and not any((*begins, *ends)):
        counted, (x, begins, ends) = 1, x.unpadded
    x, windows = _image(step, x, list(zip(x.shape[2:], kernel, strides, begins, ends, strict=True)))
    _, kernel, strides, begins, ends = (list(one) for one in zip(*windows, strict=True))
    counts = [_count(step, *one) for one in windows]
    p = {"pool": "MAX" if maximum else "AVE", **sizes("kernel", kernel), **sizes("stride", strides)}
    areas = _areas(windows, counts, list(zip(begins, ends, strict=True)) if counted else [(0, 0)] * len(windows))
    y = None
    if all(begin < k for begin, k in zip(begins, kernel, strict=True)):
        y = _pooled(step, x, {**p, **sizes("pad", begins)}, counts)
    if y is None:
        x = padded(step, x, [0, 0, *begins], [0, 0, *ends], -FLT_MAX if maximum else 0)
        windows = [(n + begin + end, k, stride, 0, 0) for n, k, stride, begin, end in windows]
        y = _pooled(step, x, p, counts)
    if y is None:
        raise step.refuse(f"Caffe's windows do not give {counts} outputs", "pad symmetrically")
    if maximum:
        return y
    step.net.take(areas.size)
    own = _areas(windows, counts, [(begin, begin) for *_, begin, _ in windows])
    return y if (own == areas).all() else with_constant(step, y, np.float32(own / np.maximum(areas, 1)), "Scale")


def _image(step: Step, x: Value, windows: list[Windows]) -> tuple[Value, list[Windows]]:
    """x with two spatial axes. Successive axes that are not pooled become one, and first ones become channels."""
    merged = windows[:1]
    for window in windows[1:]:
        if len(windows) > 2 and window[1:] == merged[-1][1:] == _NOT_POOLED:
            merged[-1] = (merged[-1][0] * window[0], *_NOT_POOLED)
        else:
            merged.append(window)
    if len(merged) > 2 and merged[0][1:] == _NOT_POOLED:
        del merged[0]
    three = step.takes("Pooling", pooling_param={"kernel_size_3d": [1]})
    if not windows or len(merged) > 2 + three:
        raise step.refuse(f"it pools {len(merged)} axes of {x.shape}", "pool images, or three axes with --forks")
    merged = [(1, *_NOT_POOLED)] * (2 - len(merged)) + merged
    sizes_of = [n for n, *_ in merged]
    return step.reshape(x, (x.shape[0], math.prod(x.shape[1:]) // math.prod(sizes_of), *sizes_of)), merged


def _count(step: Step, n: int, kernel: int, stride: int, begin: int, end: int) -> int:
    """ONNX's number of windows: with ceil_mode none begins in the padding at the end."""
    more = (stride - 1) * step.attribute("ceil_mode", 0)
    count = int((n + begin + end - kernel + more) // stride + 1)
    return count - 1 if more and (count - 1) * stride >= n + begin else count


def _pooled(step: Step, x: Value, p: dict[str, Any], counts: list[int]) -> Value | None:
    """A Pooling with so many windows, or None if Caffe has none.

    If the target's toolchain cannot round down, a Convolution with weights 0 and 1 drops the last row and column.
    """
    one = {name: value[0] for name, value in p.items() if isinstance(value, list) and len(value) == 1}
    p = {f"{name}_3d" if isinstance(value, list) else name: value for name, value in p.items() if name not in one} | one
    rounding = step.net.target.rounding
    for mode in ({}, {"round_mode": "FLOOR"}) if rounding else ({},):
        y = step.layer("Pooling", x, pooling_param={**p, **mode})
        if list(y.shape[2:]) == counts:
            return y
    surplus = [n - count for n, count in zip(y.shape[2:], counts, strict=True)]
    gaps = any(p.get(f"stride_{a}", p.get("stride", 1)) > p.get(f"kernel_{a}", p.get("kernel_size")) for a in "hw")
    if rounding or min(surplus) < 0 or (gaps and p["pool"] == "AVE"):  # the average of an empty window is no number
        return None
    weights = step.zeros(y.shape[1], 1, *(n + 1 for n in surplus))
    weights[..., 0, 0] = 1
    p = {"num_output": y.shape[1], "group": y.shape[1], "bias_term": False, **sizes("kernel", weights.shape[2:])}
    return step.layer("Convolution", y, blobs=[weights], fixed=True, convolution_param=p)


def _areas(windows: list[Windows], counts: list[int], counted: list[tuple[int, int]]) -> np.ndarray:
    """The area of each window within the image and this much of the padding at both ends of each axis."""
    lengths = []
    for (n, k, stride, begin, _), count, (before, behind) in zip(windows, counts, counted, strict=True):
        start = np.arange(count) * stride - begin
        lengths.append(np.minimum(start + k, n + behind) - np.maximum(start, -before))
    return functools.reduce(np.multiply.outer, lengths).astype(np.float64)


# --- reductions ---


@reads(*REDUCTIONS, "ReduceL2", "ReduceMax", "ReduceMin", "GlobalAveragePool", "GlobalMaxPool")
def reduction(step: Step) -> Value:
    x, given, operator = step.x, step.list_of(1, "axes"), step.op
    if operator.startswith("Global"):
        given, operator = list(range(2, len(x.shape))), "ReduceMax" if "Max" in operator else "ReduceMean"
    if not given and step.attribute("noop_with_empty_axes", 0):
        return x
    axes = sorted({step.axis(axis, x.shape) for axis in given or range(len(x.shape))})
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    if operator in ("ReduceMax", "ReduceMin"):
        sign = -1 if operator == "ReduceMin" else 1
        return step.power(_largest(step, step.power(x, scale=sign), axes, kept), scale=sign)
    y = _summed(step, x, axes, kept, operator.replace("L2", "SumSquare"))
    return step.power(y, power=0.5) if operator == "ReduceL2" else y


def _summed(step: Step, x: Value, axes: list[int], kept: list[int], operator: str) -> Value:
    """The sums, by a convolution with equal weights where they are over the channels of images."""
    if len(x.shape) == 4 and axes == [2, 3] and operator == "ReduceMean":
        return step.layer("Pooling", x, pooling_param={"pool": "AVE", "global_pooling": True})
    if len(x.shape) != 4 or axes != [1]:
        p = {"operation": REDUCTIONS[operator], "axis": len(kept)}
        return step.layer("Reduction", permuted(step, x, [*kept, *axes]), reduction_param=p)
    x = step.layer("AbsVal", x) if operator == "ReduceL1" else x
    x = step.power(x, power=2) if operator == "ReduceSumSquare" else x
    weights = np.full((1, x.shape[1], 1, 1), 1 / x.shape[1] if operator == "ReduceMean" else 1)
    p = {"num_output": 1, "kernel_size": [1], "bias_term": False}
    return step.layer("Convolution", x, blobs=[weights], fixed=True, convolution_param=p)


def _largest(step: Step, x: Value, axes: list[int], kept: list[int]) -> Value:
    """The maxima, by a pooling of images (N, kept, 1, reduced)."""
    if len(x.shape) != 4 or axes != [2, 3]:
        x = permuted(step, x, [*kept, *axes])
        images, rows = x.shape[0] if kept else 1, math.prod(x.shape[: len(kept)])
        x = step.reshape(x, (images, rows // images, 1, math.prod(x.shape[len(kept) :])))
    return step.layer("Pooling", x, pooling_param={"pool": "MAX", "global_pooling": True})


@reads("ArgMax")
def argmax(step: Step) -> Value:
    """Of equal values Caffe takes the last, and ONNX the first unless select_last_index is set."""
    return step.layer("ArgMax", step.x, argmax_param={"axis": step.axis(step.attribute("axis", 0), step.x.shape)})
