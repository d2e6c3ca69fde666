"""Operators that reduce axes."""

from __future__ import annotations

import math

import numpy as np

from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.onnx.reading.graph import Step, Value, reads
from fcaffe.tools.onnx.reading.reorder import permuted

_OPERATIONS = {
    "ReduceMean": "MEAN",
    "ReduceSum": "SUM",
    "ReduceL1": "ASUM",
    "ReduceSumSquare": "SUMSQ",
    "ReduceL2": "SUMSQ",
    "ReduceMax": "MAX",
    "ReduceMin": "MIN",
}


@reads(*_OPERATIONS)
def reduction(step: Step) -> Value:
    x, given = step.x, step.list_of(1, "axes")
    if not given and step.attribute("noop_with_empty_axes", 0):
        return x
    axes = sorted({step.axis(axis, x.shape) for axis in given or range(len(x.shape))})
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    shape = tuple(
        1 if axis in axes else n for axis, n in enumerate(x.shape) if axis in kept or step.attribute("keepdims", 1)
    )
    y = _reduced(step, x, axes, kept, _OPERATIONS[step.op])
    y = step.power(y, power=0.5) if step.op == "ReduceL2" else y
    return step.reshape(y, shape)


def _reduced(step: Step, x: Value, axes: list[int], kept: list[int], operation: str) -> Value:
    """A blob with the values of the reduction."""
    if len(x.shape) == 4 and axes == [2, 3] and operation in ("MEAN", "MAX"):
        return global_pool(step, x, "AVE" if operation == "MEAN" else "MAX")
    if len(x.shape) == 4 and axes == [1] and operation not in ("MAX", "MIN"):
        return _over_channels(step, x, operation)
    x = permuted(step, x, [*kept, *axes])
    if operation not in ("MAX", "MIN"):
        code = pb.ReductionParameter.ReductionOp.Value(operation)
        return step.layer("Reduction", x, reduction_param={"operation": code, "axis": len(kept)})
    sign = -1 if operation == "MIN" else 1
    rows = math.prod(x.shape[: len(kept)])
    images = x.shape[0] if kept else 1
    plane = step.reshape(x, (images, rows // images, 1, math.prod(x.shape[len(kept) :])))
    return step.power(global_pool(step, step.power(plane, scale=sign), "MAX"), scale=sign)


def global_pool(step: Step, x: Value, method: str) -> Value:
    return step.layer("Pooling", x, pooling_param={"pool": method, "global_pooling": True})


def _over_channels(step: Step, x: Value, operation: str) -> Value:
    """A sum over channels: a convolution with equal weights."""
    if operation == "ASUM":
        x = step.layer("AbsVal", x)
    if operation == "SUMSQ":
        x = step.power(x, power=2)
    channels = x.shape[1]
    weights = np.full((1, channels, 1, 1), 1 / channels if operation == "MEAN" else 1)
    p = {"num_output": 1, "kernel_size": 1, "bias_term": False}
    return step.layer("Convolution", x, blobs=[weights], fixed=True, convolution_param=p)


@reads("ArgMax")
def argmax(step: Step) -> Value:
    """Of equal values Caffe takes the last, and ONNX the first unless select_last_index is set."""
    x = step.x
    axis = step.axis(step.attribute("axis", 0), x.shape)
    y = step.layer("ArgMax", x, argmax_param={"axis": axis})
    return y if step.attribute("keepdims", 1) else step.reshape(y, (*x.shape[:axis], *x.shape[axis + 1 :]))
