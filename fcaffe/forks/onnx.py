"""Layers of Caffe's forks in ONNX."""

from __future__ import annotations

import math

import numpy as np

from fcaffe.forks import onnx_detection  # noqa: F401 - fills the registry
from fcaffe.forks.resize import UpsampleNearest
from fcaffe.forks.roi_pooling import ROIAlignMean
from fcaffe.onnx.writing.convolution import convolution
from fcaffe.onnx.writing.graph import Step, writes
from fcaffe.onnx.writing.normalization import batch_norm
from fcaffe.onnx.writing.recurrent import GATES
from fcaffe.onnx.writing.refused import SCORES, TRAINS, refuse_types

INDEX, FIRST, LAST = [0], [1, 2], [3, 4]  # columns of regions: image, x1 and y1, x2 and y2
AFTER = "no operator does its work; end the deploy prototxt in front of it, and do it in the program that runs the net"

writes("ConvolutionDepthwise", "DepthwiseConvolution")(convolution)
writes("BN")(batch_norm)
refuse_types(TRAINS, "BoxAnnotatorOHEM", "CombinedMargin", "CosinAddm", "LabelSpecificAdd", "LabelSpecificMargin")
refuse_types(TRAINS, "MarginInnerProduct")
refuse_types(SCORES, "DetectionEvaluate", "EvalDetection")
refuse_types(AFTER, "CTCGreedyDecoder", "Proposal", "Yolov3DetectionOutput")
refuse_types(
    "no operator of ONNX pools each bin from channels of its own; a net with ROIPooling can be written", "PSROIPooling"
)


@writes("Permute", "Transpose")
def permute(step: Step) -> str:
    step.layer_has(permute_param="order", transpose_param="dim")
    return step.op("Transpose", step.x, perm=step.layer.order)


@writes("MatMul")
def matmul(step: Step) -> str:
    step.layer_has(matmul_param="transpose_a transpose_b")
    factors = []
    for name, shape, transposed in zip(step.inputs, step.bottoms, step.layer.transposed, strict=True):
        *batch, rows, columns = range(len(shape))
        factors.append(step.op("Transpose", name, perm=[*batch, columns, rows]) if transposed else name)
    return step.op("MatMul", *factors)


@writes("Reverse", "Flip")
def reverse(step: Step) -> str:
    step.layer_has(reverse_param="axis", flip_param="flip_width flip_height")
    return step.reversed(step.x, step.layer.axes) if step.layer.axes else step.x


@writes("ShuffleChannel", "Reorg")
def regroup(step: Step) -> str:
    step.layer_has(shuffle_channel_param="group", reorg_param="stride reverse")
    parts, order = (step.bottoms[0][0], *step.layer.parts), step.layer.order
    moved = step.op("Transpose", step.reshape(step.x, step.bottoms[0], parts), perm=order)
    return step.reshape(moved, tuple(parts[axis] for axis in order), step.tops[0])


@writes("Axpy")
def axpy(step: Step) -> str:
    a, x, y = step.inputs
    factor = step.reshape(a, step.bottoms[0], (*step.bottoms[0][:2], 1, 1))
    return step.op("Add", step.op("Mul", factor, x), y)


@writes("ReLU6")
def relu6(step: Step) -> str:
    y = step.op("Clip", step.x, step.array(0, "min"), step.array(6, "max"))
    slope = step.param.relu6_param.negative_slope
    return step.op("Add", y, step.times(step.op("Min", step.x, step.array(0, "zero")), slope)) if slope else y


@writes("Normalize")
def normalize(step: Step) -> str:
    step.layer_has(norm_param="across_spatial channel_shared eps", normalize_param="normalize_type")
    layer, shape = step.layer, step.bottoms[0]
    norm = step.plus(step.reduce("ReduceL1" if layer.l1 else "ReduceSumSquare", step.x, layer.axes), layer.eps)
    y = step.op("Div", step.x, norm if layer.l1 else step.op("Sqrt", norm))
    if not step.blobs:
        return y
    return step.op("Mul", y, step.blob_in_shape(0, (*layer.blobs[0].shape, *(1,) * (len(shape) - 2))))


@writes("Interp")
def interp(step: Step) -> str:
    step.layer_has(interp_param="height width zoom_factor shrink_factor pad_beg pad_end")
    x, cropped = step.x, step.layer.cropped
    if tuple(cropped) != step.bottoms[0][2:]:
        start = -step.param.interp_param.pad_beg
        x = step.slice(x, [start] * 2, [start + n for n in cropped], [2, 3])
    sizes = step.integers(step.tops[0], "sizes")
    return step.op("Resize", x, "", "", sizes, mode="linear", coordinate_transformation_mode="align_corners")


@writes("DeephiResize")
def deephi_resize(step: Step) -> str:
    step.layer_has(deephi_resize_param="new_height new_width scale_h scale_w resize_type")
    mode, where = ("nearest", "asymmetric") if step.layer.nearest else ("linear", "half_pixel")
    how = {"mode": mode, "coordinate_transformation_mode": where, "nearest_mode": "floor"}
    return step.op("Resize", step.x, "", "", step.integers(step.tops[0], "sizes"), **how)


@writes("Upsample")
def upsample(step: Step) -> str:
    step.layer_has(upsample_param="scale scale_h scale_w pad_out_h pad_out_w upsample_h upsample_w")
    if isinstance(step.layer, UpsampleNearest):
        scales = step.array([1, 1, step.layer.scale, step.layer.scale], "scales")
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return step.op("Resize", step.x, "", scales, mode="nearest", **how)
    shape, top = step.bottoms[0], step.tops[0]
    planes, flat = (*shape[:2], math.prod(shape[2:])), (*top[:2], math.prod(top[2:]))
    zeros = step.op("ConstantOfShape", step.integers(flat, "shape"))
    indices = step.cast(step.reshape(step.inputs[1], shape, planes), "INT64")
    y = step.op("ScatterElements", zeros, indices, step.reshape(step.x, shape, planes), axis=2)
    return step.reshape(y, flat, top)


@writes("ROIPooling")
def roi_pooling(step: Step) -> str:
    """MaxRoiPool, which rounds as Caffe does."""
    p = step.param.roi_pooling_param
    regions = _rows(step)
    if p.pad_ratio:
        index, first, last = (_columns(step, regions, which) for which in (INDEX, FIRST, LAST))
        pad = step.times(step.plus(step.op("Sub", last, first), 1), p.pad_ratio)
        regions = step.op("Concat", index, step.op("Sub", first, pad), step.op("Add", last, pad), axis=1)
    size = [p.pooled_h, p.pooled_w]
    return step.op("MaxRoiPool", step.x, regions, pooled_shape=size, spatial_scale=p.spatial_scale)


@writes("ROIAlign")
def roi_align(step: Step) -> str:
    if not isinstance(step.layer, ROIAlignMean):
        raise step.refuse(
            "MS-CNN's layer samples the corners of bins, ONNX's RoiAlign their inside; a net trained with "
            "roi_align_param can be written"
        )
    p, regions = step.param.roi_align_param, _rows(step)
    images = step.op("Reshape", step.cast(_columns(step, regions, INDEX), "INT64"), step.integers([-1], "row"))
    return step.op(
        "RoiAlign",
        step.x,
        _columns(step, regions, FIRST + LAST),
        images,
        coordinate_transformation_mode="output_half_pixel",
        output_height=p.pooled_h,
        output_width=p.pooled_w,
        sampling_ratio=max(0, p.sampling_ratio),
        spatial_scale=p.spatial_scale,
    )


@writes("Lstm")
def lstm(step: Step) -> str:
    step.layer_has(lstm_param="num_output batch_size")
    layer, shape = step.layer, step.bottoms[0]
    if layer.has_marks:
        raise step.refuse("its state carries over from run to run; leave out its second bottom, the marks")
    streams, size = layer.streams, layer.outputs
    weights, recurrent, bias = (
        step.graph.constants[name].reshape(4, size, -1)[GATES].reshape(1, 4 * size, -1) for name in step.blobs
    )
    biases = np.concatenate([bias.reshape(1, -1), np.zeros((1, 4 * size))], axis=1)
    values = math.prod(shape[layer.axes :])
    steps = math.prod(shape) // max(1, values * streams)
    y = step.op(
        "LSTM",
        step.op("Reshape", step.x, step.integers([steps, streams, values], "steps")),
        *(step.array(array, what) for array, what in ((weights, "W"), (recurrent, "R"), (biases, "B"))),
        hidden_size=size,
    )
    return step.op("Reshape", y, step.integers(step.tops[0], "rows"))


def _rows(step: Step) -> str:
    """The regions as (R, 5)."""
    shape = step.bottoms[1]
    return step.reshape(step.inputs[1], shape, shape[:2])


def _columns(step: Step, regions: str, which: list[int]) -> str:
    return step.op("Gather", regions, step.integers(which, "columns"), axis=1)
