"""Operators that reduce axes."""

from __future__ import annotations

import math

import numpy as np

from fcaffe.tools.onnx.reading.graph import Step, Value, reads
from fcaffe.tools.onnx.reading.reorder import permuted
from fcaffe.tools.onnx.shape import REDUCTIONS


@reads(*REDUCTIONS, "ReduceL2", "ReduceMax", "ReduceMin")
def reduction(step: Step) -> Value:
    x, given = step.x, step.list_of(1, "axes")
    if not given and step.attribute("noop_with_empty_axes", 0):
        return x
    axes = sorted({step.axis(axis, x.shape) for axis in given or range(len(x.shape))})
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    if step.op in ("ReduceMax", "ReduceMin"):
        sign = -1 if step.op == "ReduceMin" else 1
        y = step.power(_largest(step, step.power(x, scale=sign), axes, kept), scale=sign)
    else:
        y = _summed(step, x, axes, kept, step.op.replace("L2", "SumSquare"))
    y = step.power(y, power=0.5) if step.op == "ReduceL2" else y
    keep = step.attribute("keepdims", 1)
    return step.reshape(y, tuple(1 if axis in axes else n for axis, n in enumerate(x.shape) if axis in kept or keep))


def _summed(step: Step, x: Value, axes: list[int], kept: list[int], operator: str) -> Value:
    """The sums, by a convolution with equal weights where they are over the channels of images."""
    if len(x.shape) == 4 and axes == [2, 3] and operator == "ReduceMean":
        return global_pool(step, x, "AVE")
    if len(x.shape) != 4 or axes != [1]:
        p = {"operation": REDUCTIONS[operator], "axis": len(kept)}
        return step.layer("Reduction", permuted(step, x, [*kept, *axes]), reduction_param=p)
    x = step.layer("AbsVal", x) if operator == "ReduceL1" else x
    x = step.power(x, power=2) if operator == "ReduceSumSquare" else x
    weights = np.full((1, x.shape[1], 1, 1), 1 / x.shape[1] if operator == "ReduceMean" else 1)
    p = {"num_output": 1, "kernel_size": 1, "bias_term": False}
    return step.layer("Convolution", x, blobs=[weights], fixed=True, convolution_param=p)


def _largest(step: Step, x: Value, axes: list[int], kept: list[int]) -> Value:
    """The maxima, by a pooling of images (N, kept, 1, reduced)."""
    if len(x.shape) == 4 and axes == [2, 3]:
        return global_pool(step, x, "MAX")
    x = permuted(step, x, [*kept, *axes])
    images, rows = x.shape[0] if kept else 1, math.prod(x.shape[: len(kept)])
    return global_pool(step, step.reshape(x, (images, rows // images, 1, math.prod(x.shape[len(kept) :]))), "MAX")


def global_pool(step: Step, x: Value, method: str) -> Value:
    return step.layer("Pooling", x, pooling_param={"pool": method, "global_pooling": True})


@reads("ArgMax")
def argmax(step: Step) -> Value:
    """Of equal values Caffe takes the last, and ONNX the first unless select_last_index is set."""
    x = step.x
    axis = step.axis(step.attribute("axis", 0), x.shape)
    y = step.layer("ArgMax", x, argmax_param={"axis": axis})
    return y if step.attribute("keepdims", 1) else step.reshape(y, (*x.shape[:axis], *x.shape[axis + 1 :]))
