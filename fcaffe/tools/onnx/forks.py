"""Layers of Caffe's forks in ONNX."""

from __future__ import annotations

import math

from fcaffe.layers.forks.normalize import NormalizeWindows
from fcaffe.layers.forks.resize import UpsampleNearest
from fcaffe.tools.onnx.graph import Step, writes

FIRST = -(2**31)  # before the first element, for a Slice with a negative step


@writes("Permute", "Transpose")
def permute(step: Step) -> list[str]:
    return [step.op("Transpose", step.x, perm=step.layer.order)]


@writes("Reverse")
def reverse(step: Step) -> list[str]:
    return [_reversed(step, [step.layer.axis])]


@writes("Flip")
def flip(step: Step) -> list[str]:
    return [_reversed(step, step.layer.axes) if step.layer.axes else step.x]


def _reversed(step: Step, axes: list[int]) -> str:
    constants = ([-1] * len(axes), "starts"), ([FIRST] * len(axes), "ends"), (axes, "axes"), ([-1] * len(axes), "steps")
    return step.op("Slice", step.x, *(step.integers(values, what) for values, what in constants))


@writes("ShuffleChannel")
def shuffle_channel(step: Step) -> list[str]:
    shape, group = step.bottoms[0], step.param.shuffle_channel_param.group
    parts = (shape[0], group, shape[1] // group, *shape[2:])
    swapped = step.op("Transpose", step.reshape(step.x, shape, parts), perm=[0, 2, 1, 3, 4])
    return [step.reshape(swapped, (parts[0], parts[2], parts[1], *parts[3:]), shape)]


@writes("Reorg")
def reorg(step: Step) -> list[str]:
    layer, shape = step.layer, step.bottoms[0]
    images, stride, _, channels, height, width = layer.squares
    if step.param.reorg_param.reverse:
        parts, order = layer.squares, [0, 3, 4, 1, 5, 2]
    else:
        parts, order = (images, channels, height, stride, width, stride), [0, 3, 5, 1, 2, 4]
    moved = step.op("Transpose", step.reshape(step.x, shape, parts), perm=order)
    return [step.reshape(moved, tuple(parts[axis] for axis in order), step.tops[0])]


@writes("Axpy")
def axpy(step: Step) -> list[str]:
    a, x, y = step.inputs
    factor = step.reshape(a, step.bottoms[0], (*step.bottoms[0][:2], 1, 1))
    return [step.op("Add", step.op("Mul", factor, x), y)]


@writes("ReLU6")
def relu6(step: Step) -> list[str]:
    y = step.op("Clip", step.x, step.array(0, "min"), step.array(6, "max"))
    slope = step.layer.slope
    return [step.op("Add", y, step.times(step.op("Min", step.x, step.array(0, "zero")), slope)) if slope else y]


@writes("Normalize")
def normalize(step: Step) -> list[str]:
    layer, shape = step.layer, step.bottoms[0]
    axes = [layer.axes] if isinstance(layer.axes, int) else layer.axes
    if isinstance(layer, NormalizeWindows):
        eps, l1 = layer.EPS, layer.kind == "L1"
    else:
        eps, l1 = step.param.norm_param.eps, False
    norm = step.plus(step.reduce("ReduceL1" if l1 else "ReduceSumSquare", step.x, axes), eps)
    y = step.op("Div", step.x, norm if l1 else step.op("Sqrt", norm))
    if not step.blobs:
        return [y]
    return [step.op("Mul", y, step.blob_in_shape(0, (*layer.blobs[0].shape, *(1,) * (len(shape) - 2))))]


@writes("Interp")
def interp(step: Step) -> list[str]:
    x, cropped = step.x, step.layer.cropped
    if tuple(cropped) != step.bottoms[0][2:]:
        start = -step.param.interp_param.pad_beg
        ends = [start + n for n in cropped]
        constants = ([start] * 2, "starts"), (ends, "ends"), ([2, 3], "axes")
        x = step.op("Slice", x, *(step.integers(values, what) for values, what in constants))
    sizes = step.integers(step.tops[0], "sizes")
    return [step.op("Resize", x, "", "", sizes, mode="linear", coordinate_transformation_mode="align_corners")]


@writes("Upsample")
def upsample(step: Step) -> list[str]:
    if isinstance(step.layer, UpsampleNearest):
        scales = step.array([1, 1, step.layer.scale, step.layer.scale], "scales")
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return [step.op("Resize", step.x, "", scales, mode="nearest", **how)]
    shape, top = step.bottoms[0], step.tops[0]
    planes, flat = (*shape[:2], math.prod(shape[2:])), (*top[:2], math.prod(top[2:]))
    zeros = step.op("ConstantOfShape", step.integers(flat, "shape"))
    indices = step.cast(step.reshape(step.inputs[1], shape, planes), "INT64")
    y = step.op("ScatterElements", zeros, indices, step.reshape(step.x, shape, planes), axis=2)
    return [step.reshape(y, flat, top)]
