"""Normalisations and softmax."""

from __future__ import annotations

import math

import numpy as np

from fcaffe.onnx.reading.arithmetic import combined
from fcaffe.onnx.reading.graph import Step, Value
from fcaffe.onnx.reading.pooling import log_of_sum, moved_behind
from fcaffe.onnx.reading.reorder import permuted

NOTHING = 1e-18  # of a variance: it keeps 0 / 0 from being no number


def batch_normalization(step: Step) -> Value:
    step.attribute("momentum")
    if step.attribute("training_mode") or any(map(step.is_read, range(1, 5))):
        raise step.refuse("it normalises by the statistics of the batch", "export the model after model.eval()")
    kinds = "scales", "shifts", "means", "variances"
    scale, shift, mean, variance = (step.weights(1 + i, kind).reshape(-1) for i, kind in enumerate(kinds))
    p = {"use_global_stats": True, "eps": step.attribute("epsilon")}
    x = step.x if len(step.x.shape) > 1 else step.reshape(step.x, (*step.x.shape, 1))
    y = step.layer("BatchNorm", x, blobs=[mean, variance, np.ones(1)], batch_norm_param=p)
    if (scale == 1).all() and (shift == 0).all() and not step.net.merge:  # which may need a Scale to become one
        return y
    return step.layer("Scale", y, blobs=[scale, shift], scale_param={"bias_term": True})


def standardised(step: Step, x: Value, rows: int, eps: float, centre: bool = True) -> tuple[Value, Value]:
    """x with each of `rows` rows for each image centred, and divided by its deviation, sqrt(variance + eps).

    The second value is the inverse deviations (images, rows).

    MVN centres. It cannot divide here, since it adds eps to the root.
    """
    images = x.shape[0]
    length = math.prod(x.shape[1:]) // rows
    y = step.reshape(x, (images, rows, 1, length))
    if centre:
        y = step.layer("MVN", y, mvn_param={"normalize_variance": False})
    squares = {"operation": "SUMSQ", "axis": 2, "coeff": 1 / length}
    variance = step.layer("Reduction", y, reduction_param=squares)
    inverse = step.power(variance, shift=eps, power=-0.5)
    return step.reshape(step.layer("Scale", y, inverse, scale_param={"axis": 0}), x.shape), inverse


def normalization(step: Step) -> list[Value]:
    """Over groups of channels, or over the last axes; then a Scale, whose blobs have the axes from `axis` on."""
    x, eps, axis = step.x, step.attribute("epsilon"), 1
    blobs = [step.weights(index, what) for index, what in ((1, "scales"), (2, "shifts")) if step.has(index)]
    if step.op in ("InstanceNormalization", "GroupNormalization"):
        channels = x.shape[1] if len(x.shape) > 2 else 0
        rows = channels if step.op == "InstanceNormalization" else step.attribute("num_groups")
        if rows < 1 or channels % rows or any(blob.size not in (rows, channels) for blob in blobs):
            raise step.error(f"its {rows} groups and {blobs[0].size} scales do not fit {x.shape}")
        blobs = [np.repeat(blob.reshape(-1), channels // blob.size) for blob in blobs]
    else:
        axis = step.axis(step.attribute("axis"), x.shape)
        if axis == 0:
            x, axis = step.reshape(x, (1, *x.shape)), 1
        rows = math.prod(x.shape[1:axis])
        blobs = [np.broadcast_to(blob, x.shape[axis:]) for blob in blobs]
    y, inverse = standardised(step, x, rows, eps, step.op != "RMSNormalization")
    p = {"axis": axis, "num_axes": blobs[0].ndim, "bias_term": len(blobs) > 1}
    tops = [step.layer("Scale", y, blobs=blobs, scale_param=p)]
    if step.is_read(1) or step.is_read(2):
        mean = {"operation": "MEAN", "axis": 2}
        flat = step.reshape(x, (x.shape[0], rows, math.prod(x.shape[1:]) // rows))
        tops += [step.layer("Reduction", flat, reduction_param=mean), inverse]
        tops = [step.reshape(top, one.shape or top.shape) for top, one in zip(tops, step.outputs, strict=False)]
    return tops


def mean_variance(step: Step) -> Value:
    """MeanVarianceNormalization, whose reduced axes are moved behind the others."""
    x, axes = step.x, sorted({step.axis(axis, step.x.shape) for axis in step.attribute("axes")})
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    moved = moved_behind(step, x, axes)
    images = moved.shape[0] if kept else 1
    rows = math.prod(x.shape[axis] for axis in kept) // images
    flat = step.reshape(moved, (images, math.prod(x.shape) // images))
    y = step.reshape(standardised(step, flat, rows, NOTHING)[0], moved.shape)
    return permuted(step, y, [[*kept, *axes].index(axis) for axis in range(len(x.shape))])


def softmax(step: Step) -> Value:
    """Over one axis, and before version 13 over all axes from this one on.

    A logarithm is x - max - log(sum(exp(x - max))), since that of small probabilities underflows.
    """
    x, axis = step.x, step.axis(step.attribute("axis"), step.x.shape)
    if step.schema.since_version < 13 and any(n != 1 for n in x.shape[axis + 1 :]):
        x, axis = step.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))), 1
    if step.op == "LogSoftmax":
        less, total = log_of_sum(step, x, [axis])
        y = combined(step, less, total, "Bias", -1)
    else:
        y = step.layer("Softmax", x, softmax_param={"axis": axis} if axis != 1 else {})
    return step.reshape(y, step.x.shape)
