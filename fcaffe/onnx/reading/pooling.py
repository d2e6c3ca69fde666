"""Pooling, and operators that reduce axes.

Caffe's windows begin at -pad, as ONNX's do, and may end beyond the image. So whatever the padding at the end is,
Caffe's pooling has ONNX's windows if their number is the same: rounded up, Caffe's default, or down (`round_mode:
FLOOR`). For maxima that is all. Averages are divided by different areas, which a Scale makes up for.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.onnx.reading.arithmetic import combined, with_constant
from fcaffe.onnx.reading.convolution import each, padding
from fcaffe.onnx.reading.graph import Step, Value, sizes
from fcaffe.onnx.reading.reorder import chosen, padded, permuted, weighted
from fcaffe.onnx.shape import REDUCTIONS


class Window(NamedTuple):
    """The windows along an axis: its size, the padding at its begin and its end, and the number of windows."""

    size: int
    kernel: int = 1
    stride: int = 1
    begin: int = 0
    end: int = 0
    outputs: int = 1

    @property
    def pooled(self) -> bool:
        return self[1:5] != (1, 1, 0, 0)

    def lengths(self, before: int, behind: int) -> np.ndarray:
        """The length of each window within the axis and this much of the padding at both ends."""
        start = np.arange(self.outputs) * self.stride - self.begin
        return np.minimum(start + self.kernel, self.size + behind) - np.maximum(start, -before)


def pooling(step: Step) -> Value:
    x, maximum, counted = step.x, step.op == "MaxPool", step.attribute("count_include_pad", 0)
    step.seen.update({"storage_order", "ceil_mode"})  # of indices; and the number of windows follows from it
    axes = len(x.shape) - 2
    if step.is_read(1) or max(each(step, "dilations", axes), default=1) > 1:
        raise step.refuse("it gives indices, or has gaps in its windows", "use dilation 1, and no indices")
    kernel, strides = each(step, "kernel_shape", axes), each(step, "strides", axes)
    begins, ends = padding(step, kernel, strides)
    if x.unpadded is not None and not maximum and not any((*begins, *ends)):
        counted, (x, begins, ends) = 1, x.unpadded
    given = zip(x.shape[2:], kernel, strides, begins, ends, step.shape[2:], strict=True)
    x, windows = _image(step, x, [Window(*one) for one in given])
    _, kernel, strides, begins, ends, counts = (list(one) for one in zip(*windows, strict=True))
    p = {"pool": "MAX" if maximum else "AVE", **sizes("kernel", kernel), **sizes("stride", strides)}
    areas = _areas([one.lengths(one.begin * counted, one.end * counted) for one in windows])
    y = None
    if all(begin < k for begin, k in zip(begins, kernel, strict=True)):
        y = _pooled(step, x, {**p, **sizes("pad", begins)}, counts)
    if y is None:
        x = padded(step, x, [0, 0, *begins], [0, 0, *ends], -FLT_MAX if maximum else 0)
        windows = [one._replace(size=one.size + one.begin + one.end, begin=0, end=0) for one in windows]
        y = _pooled(step, x, p, counts)
    if y is None:
        raise step.refuse(f"Caffe's windows do not give {counts} outputs", "pad symmetrically")
    if not maximum:
        step.net.take(areas.size)
        own = _areas([one.lengths(one.begin, one.begin) for one in windows])  # which Caffe divides by
        if (own != areas).any():
            y = with_constant(step, y, np.float32(own / np.maximum(areas, 1)), "Scale")
    return step.reshape(y, step.shape)


def _areas(lengths: list[np.ndarray]) -> np.ndarray:
    return functools.reduce(np.multiply.outer, lengths).astype(np.float64)


def _image(step: Step, x: Value, windows: list[Window]) -> tuple[Value, list[Window]]:
    """x with two spatial axes. Successive axes that are not pooled become one, and first ones become channels."""
    merged = windows[:1]
    for window in windows[1:]:
        if len(windows) > 2 and not window.pooled and not merged[-1].pooled:
            merged[-1] = Window(merged[-1].size * window.size, outputs=merged[-1].outputs * window.outputs)
        else:
            merged.append(window)
    if len(merged) > 2 and not merged[0].pooled:
        del merged[0]
    three = step.takes("Pooling", pooling_param={"kernel_size_3d": [1]})
    if not windows or len(merged) > 2 + three:
        raise step.refuse(f"it pools {len(merged)} axes of {x.shape}", "pool images, or three axes with --forks")
    merged = [Window(1)] * (2 - len(merged)) + merged
    sizes_of = [one.size for one in merged]
    return step.reshape(x, (x.shape[0], math.prod(x.shape[1:]) // math.prod(sizes_of), *sizes_of)), merged


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


# --- reductions ---


def reduction(step: Step) -> Value:
    x, given, operator = step.x, step.list_of(1, "axes"), step.op
    step.attribute("keepdims")  # which the shape that onnx infers follows
    if operator.startswith("Global"):
        given, operator = list(range(2, len(x.shape))), "ReduceMax" if "Max" in operator else "ReduceMean"
    if not given and step.attribute("noop_with_empty_axes", 0):
        return _of_each(step, x, operator)
    axes = sorted({step.axis(axis, x.shape) for axis in given or range(len(x.shape))})
    if operator in ("ReduceMax", "ReduceMin"):
        sign = -1 if operator == "ReduceMin" else 1
        return step.power(_largest(step, step.power(x, scale=sign), axes), scale=sign)
    if operator == "ReduceLogSumExp":
        largest = _largest(step, x, axes)
        return step.sum(largest, log_of_sum(step, x, axes)[1])
    y = _summed(step, x, axes, _SUMS.get(operator, operator))
    return (
        step.layer("Log", y)
        if operator == "ReduceLogSum"
        else step.power(y, power=0.5)
        if operator == "ReduceL2"
        else y
    )


_SUMS = {"ReduceL2": "ReduceSumSquare", "ReduceLogSum": "ReduceSum"}


def _of_each(step: Step, x: Value, operator: str) -> Value:
    """A reduction over no axes."""
    if operator in ("ReduceL1", "ReduceL2"):
        return step.layer("AbsVal", x)
    return (
        step.power(x, power=2)
        if operator == "ReduceSumSquare"
        else step.layer("Log", x)
        if operator == "ReduceLogSum"
        else x
    )


def log_of_sum(step: Step, x: Value, axes: list[int]) -> tuple[Value, Value]:
    """x - max, and the logarithm of the sum of exp(x - max), over axes, which have the length 1 in the second."""
    largest = _largest(step, x, axes)
    less = combined(step, x, largest, "Bias", -1)
    total = _summed(step, step.layer("Exp", less), axes, "ReduceSum")
    return less, step.layer("Log", step.reshape(total, largest.shape))


def _summed(step: Step, x: Value, axes: list[int], operator: str) -> Value:
    """The sums, by a convolution with equal weights where they are over the channels of images."""
    if len(x.shape) == 4 and axes == [2, 3] and operator == "ReduceMean":
        return step.layer("Pooling", x, pooling_param={"pool": "AVE", "global_pooling": True})
    if len(x.shape) != 4 or axes != [1]:
        kept = [axis for axis in range(len(x.shape)) if axis not in axes]
        p = {"operation": REDUCTIONS[operator], "axis": len(kept)}
        return step.layer("Reduction", permuted(step, x, [*kept, *axes]), reduction_param=p)
    x = step.layer("AbsVal", x) if operator == "ReduceL1" else x
    x = step.power(x, power=2) if operator == "ReduceSumSquare" else x
    return weighted(step, x, 1, np.full((1, x.shape[1]), 1 / x.shape[1] if operator == "ReduceMean" else 1))


def _largest(step: Step, x: Value, axes: list[int]) -> Value:
    """The maxima over axes, which then have the length 1, by a pooling of images (N, kept, 1, reduced)."""
    one, pooled = (
        tuple(1 if axis in axes else n for axis, n in enumerate(x.shape)),
        {"pool": "MAX", "global_pooling": True},
    )
    if len(x.shape) != 4 or axes != [2, 3]:
        kept = [axis for axis in range(len(x.shape)) if axis not in axes]
        x = permuted(step, x, [*kept, *axes])
        images, rows = x.shape[0] if kept else 1, math.prod(x.shape[: len(kept)])
        x = step.reshape(x, (images, rows // images, 1, math.prod(x.shape[len(kept) :])))
    return step.reshape(step.layer("Pooling", x, pooling_param=pooled), one)


def argmax(step: Step) -> Value:
    """Of equal values Caffe takes the last. It is the first one of the reversed axis."""
    x, last = step.x, step.attribute("select_last_index", 0)
    axis = step.axis(step.attribute("axis"), x.shape)
    step.attribute("keepdims")
    n = x.shape[axis]
    x = step.power(x, scale=-1) if step.op == "ArgMin" else x
    x = x if last else chosen(step, x, axis, range(n)[::-1])
    y = step.layer("ArgMax", x, argmax_param={"axis": axis})
    return y if last else step.power(y, scale=-1, shift=n - 1)
