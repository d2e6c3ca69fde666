"""Normalisation, Scale and Bias layers in ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fcaffe.onnx.writing.elementwise import LRN, same
from fcaffe.onnx.writing.graph import Shape, Step, writes
from fcaffe.proto import caffe_pb2 as pb


@writes("BatchNorm")
def batch_norm(step: Step) -> list[str]:
    step.layer_has(batch_norm_param="use_global_stats eps scale_bias", bn_param="eps frozen bn_mode")
    layer, (shape,) = step.layer, step.bottoms
    wide = shape if len(shape) > 1 else (*shape, 1)
    x = step.reshape(step.x, shape, wide)
    one = (1, layer.channels, *(1,) * (len(wide) - 2))
    affine = [layer.engine.to_numpy(array) for array in layer.affine or ()]
    if layer.use_global_stats:
        layer.statistics.read(layer.mean, layer.variance)
        moments = [layer.engine.to_numpy(blob.data) for blob in (layer.mean, layer.variance)]
        arrays = [*(affine or (np.ones(layer.channels), np.zeros(layer.channels))), *moments]
        kinds = ("scale", "shift", "mean", "variance")
        names = [step.array(array, kind) for kind, array in zip(kinds, arrays, strict=True)]
        return [step.reshape(step.op("BatchNormalization", x, *names, epsilon=layer.eps), wide, shape)]
    centred, *moments = _moments(step, x, [0, *range(2, len(wide))])
    y = step.op("Div", centred, step.op("Sqrt", step.plus(moments[1], layer.eps)))
    for kind, array in zip(("Mul", "Add"), affine, strict=False):
        y = step.op(kind, y, step.array(array.reshape(one), kind))
    tops = [step.reshape(moment, one, top) for moment, top in zip(moments, step.tops[1:], strict=False)]
    return [step.reshape(y, wide, shape), *tops]


def _moments(step: Step, x: str, axes: Sequence[int]) -> list[str]:
    """The values minus their mean over axes, the mean, and the variance."""
    mean = step.reduce("ReduceMean", x, axes)
    centred = step.op("Sub", x, mean)
    return [centred, mean, step.reduce("ReduceMean", step.op("Mul", centred, centred), axes)]


@writes("Scale")
def scale(step: Step) -> str:
    y = step.op("Mul", step.x, _operand(step))
    if not step.param.scale_param.bias_term:
        return y
    return step.op("Add", y, step.blob_in_shape(len(step.blobs) - 1, _spread(step)))


@writes("Bias")
def bias(step: Step) -> str:
    return step.op("Add", step.x, _operand(step))


def _operand(step: Step) -> str:
    """The operand of the first bottom, in a shape that ONNX broadcasts as Caffe does."""
    if len(step.inputs) > 1:
        return step.reshape(step.inputs[1], step.bottoms[1], _spread(step))
    return step.blob_in_shape(0, _spread(step))


def _spread(step: Step) -> Shape:
    step.layer_has(scale_param="axis num_axes", bias_param="axis num_axes")
    layer = step.layer
    own = step.bottoms[1] if len(step.bottoms) > 1 else layer.blobs[0].shape
    return (*(1,) * layer.axis, *own, *(1,) * (len(step.bottoms[0]) - layer.axis - len(own)))


@writes("LRN")
def lrn(step: Step) -> str:
    step.layer_has(lrn_param="k")  # which has no effect within channels
    p = step.param.lrn_param
    across = p.norm_region == pb.LRNParameter.ACROSS_CHANNELS
    if across and p.alpha > 0 and p.beta > 0:  # others are valid in ONNX, but not in onnxruntime
        return same(step, *LRN)
    shape, pad = step.bottoms[0], p.local_size // 2
    planes = (shape[0], 1, shape[1], shape[2] * shape[3]) if across else shape  # channels where windows slide
    kernel, pads = ([p.local_size, 1], [pad, 0, pad, 0]) if across else ([p.local_size] * 2, [pad] * 4)
    squares = step.reshape(step.op("Mul", step.x, step.x), shape, planes)
    mean = step.op("AveragePool", squares, kernel_shape=kernel, pads=pads, count_include_pad=1)
    scale = step.plus(step.times(step.reshape(mean, planes, shape), p.alpha), p.k if across else 1)
    return step.op("Div", step.x, step.op("Pow", scale, step.array(p.beta, "beta")))


@writes("MVN")
def mean_variance(step: Step) -> str:
    step.layer_has(mvn_param="eps")  # which has no effect without the variance
    p = step.param.mvn_param
    x = step.reshape(step.x, step.bottoms[0], step.tops[0])
    axes = [1, 2, 3] if p.across_channels else [2, 3]
    if not p.normalize_variance:
        return step.op("Sub", x, step.reduce("ReduceMean", x, axes))
    centred, _, variance = _moments(step, x, axes)
    return step.op("Div", centred, step.plus(step.op("Sqrt", variance), p.eps))
