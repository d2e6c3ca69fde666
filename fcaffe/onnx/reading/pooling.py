"""Pooling, and operators that reduce axes.

Caffe's windows begin at -pad, as ONNX's do, and may end beyond the image. So whatever the padding at the end is,
Caffe's pooling has ONNX's windows if their number is the same: rounded up, Caffe's default, or down (`round_mode:
FLOOR`). For maxima that is all. Averages are divided by different areas, which a Scale makes up for.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.onnx.reading.arithmetic import combined, with_constant
from fcaffe.onnx.reading.convolution import each, padding
from fcaffe.onnx.reading.graph import Step, Value, sizes
from fcaffe.onnx.reading.reorder import chosen, padded, permuted, weighted, windowed


class Window(NamedTuple):
    """The windows along an axis: its size, the padding at its begin and its end, and the number of windows."""

    size: int
    kernel: int = 1
    stride: int = 1
    begin: int = 0
    end: int = 0
    outputs: int = 1

    def lengths(self, before: int, behind: int) -> np.ndarray:
        """The length of each window within the axis and this much of the padding at both ends."""
        start = np.arange(self.outputs) * self.stride - self.begin
        return np.minimum(start + self.kernel, self.size + behind) - np.maximum(start, -before, dtype=np.float64)


def pooling(step: Step) -> Value:
    """Over two axes, or over one after the other."""
    x, counted = step.x, bool(step.attribute("count_include_pad", 0))
    step.seen.update({"storage_order", "ceil_mode"})  # of indices; and the number of windows follows from it
    axes = len(x.shape) - 2
    if step.is_read(1) or max(each(step, "dilations", axes), default=1) > 1:
        raise step.refuse("it gives indices, or has gaps in its windows", "use dilation 1, and no indices")
    kernel, strides = each(step, "kernel_shape", axes), each(step, "strides", axes)
    begins, ends = padding(step, kernel, strides)
    if x.unpadded is not None and step.op == "AveragePool" and not any((*begins, *ends)):
        counted, (x, begins, ends) = True, x.unpadded
    given = zip(x.shape[2:], kernel, strides, begins, ends, step.shape[2:], strict=True)
    windows = [Window(*one) for one in given]
    if any(one.kernel > one.begin + one.size + one.end for one in windows):
        raise step.error(f"its windows {kernel} are larger than its input {x.shape} with the padding")
    if axes == 2:
        return _over(step, x, windows, counted)
    for axis, window in enumerate(windows, 2):
        if window[1:5] == (1, 1, 0, 0):
            continue
        rest = math.prod(x.shape[axis + 1 :])
        planes = step.reshape(x, (x.shape[0], math.prod(x.shape[1:axis]), window.size, rest))
        y = _over(step, planes, [window, Window(rest, outputs=rest)], counted)
        x = step.reshape(y, (*x.shape[:axis], window.outputs, *x.shape[axis + 1 :]))
    return x


def _over(step: Step, x: Value, windows: list[Window], counted: bool) -> Value:
    """The pooling of images; `counted` if areas include the padding."""
    maximum, outer = step.op == "MaxPool", functools.partial(functools.reduce, np.multiply.outer)
    areas = [one.lengths(one.begin * counted, one.end * counted) for one in windows]
    y = None
    if all(one.begin < one.kernel <= one.size + 2 * one.begin for one in windows):
        y = _pooled(step, x, windows)
    if y is None:
        begins, ends = ([0, 0, *(one[side] for one in windows)] for side in (3, 4))
        x = padded(step, x, begins, ends, -FLT_MAX if maximum else 0)
        windows = [one._replace(size=one.size + one.begin + one.end, begin=0, end=0) for one in windows]
        y = _pooled(step, x, windows)
    if y is None:
        raise step.refuse(f"Caffe's windows do not give {step.shape[2:]} outputs", "pad symmetrically")
    if maximum:
        return y
    step.net.take(math.prod(one.outputs for one in windows))
    factors = outer([one.lengths(one.begin, one.begin) for one in windows]) / np.maximum(outer(areas), 1)
    return y if (factors == 1).all() else with_constant(step, y, np.float32(factors), "Scale")


def _pooled(step: Step, x: Value, windows: list[Window]) -> Value | None:
    """A Pooling with so many windows, rounded up or down, or None if Caffe has none.

    If the target's toolchain cannot round down, the last row and column are dropped.
    """
    _, kernel, strides, pads, _, counts = zip(*windows, strict=True)
    given = sizes("kernel", kernel) | sizes("stride", strides) | sizes("pad", pads)
    p = {name: value[0] if isinstance(value, list) else value for name, value in given.items()}
    p["pool"] = "MAX" if step.op == "MaxPool" else "AVE"
    rounding = step.net.target.rounding
    for mode in ({}, {"round_mode": "FLOOR"}) if rounding else ({},):
        y = step.layer("Pooling", x, pooling_param={**p, **mode})
        if y.shape[2:] == counts:
            return y
    empty = p["pool"] == "AVE" and any(one.stride > one.kernel for one in windows)  # whose average is no number
    if rounding or empty or any(n < count for n, count in zip(y.shape[2:], counts, strict=True)):
        return None
    return windowed(step, y, {axis: range(count) for axis, count in enumerate(counts, 2)})


# --- reductions ---


def reduction(step: Step) -> Value:
    x, given, operator = step.x, step.list_of(1, "axes"), step.op
    step.attribute("keepdims")  # which the shape that onnx infers follows
    if operator.startswith("Global"):
        given, operator = list(range(2, len(x.shape))), "ReduceMax" if "Max" in operator else "ReduceMean"
    without = [] if step.attribute("noop_with_empty_axes", 0) else range(len(x.shape))
    axes = sorted({step.axis(axis, x.shape) for axis in given or without})
    if operator in ("ReduceMax", "ReduceMin"):
        sign = -1 if operator == "ReduceMin" else 1
        return step.power(_largest(step, step.power(x, scale=sign), axes), scale=sign)
    if operator == "ReduceLogSumExp":
        largest = _largest(step, x, axes)
        return step.sum(largest, log_of_sum(step, x, axes)[1])
    if operator == "ReduceL1":
        x = step.layer("AbsVal", x)
    elif operator in ("ReduceL2", "ReduceSumSquare"):
        x = step.power(x, power=2)
    y = _summed(step, x, axes, operator == "ReduceMean")
    if operator == "ReduceLogSum":
        return step.layer("Log", y)
    return step.power(y, power=0.5) if operator == "ReduceL2" else y


def log_of_sum(step: Step, x: Value, axes: list[int]) -> tuple[Value, Value]:
    """x - max, and the logarithm of the sum of exp(x - max), over axes, which have the length 1 in the second."""
    largest = _largest(step, x, axes)
    less = combined(step, x, largest, "Bias", -1)
    total = _summed(step, step.layer("Exp", less), axes)
    return less, step.layer("Log", step.reshape(total, largest.shape))


def _summed(step: Step, x: Value, axes: list[int], mean: bool = False) -> Value:
    """The sums or means, by a convolution with equal weights where they are over the channels of images."""
    if len(x.shape) == 4 and axes == [2, 3] and mean:
        return step.layer("Pooling", x, pooling_param={"pool": "AVE", "global_pooling": True})
    if len(x.shape) == 4 and axes == [1]:
        return weighted(step, x, 1, np.full((1, x.shape[1]), 1 / x.shape[1] if mean else 1))
    if not axes:
        return x
    p = {"operation": "MEAN" if mean else "SUM", "axis": len(x.shape) - len(axes)}
    return step.layer("Reduction", moved_behind(step, x, axes), reduction_param=p)


def moved_behind(step: Step, x: Value, axes: list[int]) -> Value:
    """x with these axes behind the others."""
    return permuted(step, x, [*(axis for axis in range(len(x.shape)) if axis not in axes), *axes])


def _largest(step: Step, x: Value, axes: list[int]) -> Value:
    """The maxima over axes, which then have the length 1, by a pooling of images (N, kept, 1, reduced)."""
    one = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    if len(x.shape) != 4 or axes != [2, 3]:
        images = math.prod(one[:1])
        shape = images, math.prod(one) // images, 1, math.prod(x.shape[axis] for axis in axes)
        x = step.reshape(moved_behind(step, x, axes), shape)
    return step.reshape(step.layer("Pooling", x, pooling_param={"pool": "MAX", "global_pooling": True}), one)


def argmax(step: Step) -> Value:
    """Of equal values Caffe takes the last. It is the first one of the reversed axis."""
    x = step.x
    axis = step.axis(step.attribute("axis"), x.shape)
    step.attribute("keepdims")
    n = x.shape[axis]
    # A single value needs no reversal, which would make its index -0.
    last = step.attribute("select_last_index", 0) or n == 1
    x = step.power(x, scale=-1) if step.op == "ArgMin" else x
    x = x if last else chosen(step, x, axis, range(n)[::-1])
    y = step.layer("ArgMax", x, argmax_param={"axis": axis})
    return y if last else step.power(y, scale=-1, shift=n - 1)
