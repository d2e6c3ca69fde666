"""Regions of interest, and the Lstm of a fork, in ONNX."""

from __future__ import annotations

import math

import numpy as np

from fcaffe.layers.forks.roi_pooling import ROIAlignMean
from fcaffe.tools.onnx.graph import Step, writes

INDEX, FIRST, LAST = [0], [1, 2], [3, 4]  # columns of regions: image, x1 and y1, x2 and y2


@writes("ROIPooling")
def roi_pooling(step: Step) -> list[str]:
    """MaxRoiPool, which rounds as Caffe does."""
    p = step.param.roi_pooling_param
    regions = _rows(step)
    if p.pad_ratio:
        index, first, last = (_columns(step, regions, which) for which in (INDEX, FIRST, LAST))
        pad = step.times(step.plus(step.op("Sub", last, first), 1), p.pad_ratio)
        regions = step.op("Concat", index, step.op("Sub", first, pad), step.op("Add", last, pad), axis=1)
    return [
        step.op("MaxRoiPool", step.x, regions, pooled_shape=[p.pooled_h, p.pooled_w], spatial_scale=p.spatial_scale)
    ]


@writes("ROIAlign")
def roi_align(step: Step) -> list[str]:
    if not isinstance(step.layer, ROIAlignMean):
        raise step.refuse(
            "MS-CNN's layer samples the corners of bins, ONNX's RoiAlign their inside; a net trained with "
            "roi_align_param can be written"
        )
    p, regions = step.param.roi_align_param, _rows(step)
    images = step.op("Reshape", step.cast(_columns(step, regions, INDEX), "INT64"), step.integers([-1], "row"))
    return [
        step.op(
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
    ]


@writes("Lstm")
def lstm(step: Step) -> list[str]:
    layer, (rows, *rest) = step.layer, step.bottoms[0]
    if layer.has_marks:
        raise step.refuse("its state carries over from run to run; leave out its second bottom, the marks")
    steps, streams, size = rows // layer.streams, layer.streams, layer.outputs
    weights, recurrent, bias = (
        step.graph.constants[name].reshape(4, size, -1)[[0, 2, 1, 3]].reshape(1, 4 * size, -1)  # input, output, forget
        for name in step.blobs
    )
    biases = np.concatenate([bias.reshape(1, -1), np.zeros((1, 4 * size))], axis=1)
    values = (math.prod(rest),)
    y = step.op(
        "LSTM",
        step.op("Reshape", step.x, step.integers([steps, streams, *values], "steps")),
        *(step.array(array, what) for array, what in ((weights, "W"), (recurrent, "R"), (biases, "B"))),
        hidden_size=size,
    )
    return [step.op("Reshape", y, step.integers(step.tops[0], "rows"))]


def _rows(step: Step) -> str:
    """The regions as (R, 5)."""
    shape = step.bottoms[1]
    return step.reshape(step.inputs[1], shape, shape[:2])


def _columns(step: Step, regions: str, which: list[int]) -> str:
    return step.op("Gather", regions, step.integers(which, "columns"), axis=1)
