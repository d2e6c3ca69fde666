"""Layers that reorder, reduce or rank values, in ONNX."""

from __future__ import annotations

import math

from fcaffe.layers.reduction import ASUM, MEAN, SUM, SUMSQ
from fcaffe.onnx.writing.graph import Step, writes
from fcaffe.proto import caffe_pb2 as pb

REDUCTIONS = {"ReduceSum": SUM, "ReduceL1": ASUM, "ReduceSumSquare": SUMSQ, "ReduceMean": MEAN}  # codes by operators


@writes("Split")
def split(step: Step) -> list[str]:
    return [step.x] * len(step.tops)


@writes("Silence")
def silence(step: Step) -> list[str]:
    return []


@writes("Parameter")
def parameter(step: Step) -> list[str]:
    step.layer_has(parameter_param="shape")
    return step.blobs


@writes("DummyData")
def constants(step: Step) -> list[str]:
    step.layer_has(dummy_data_param="shape num channels height width")
    if any(filler.type != "constant" for filler in step.param.dummy_data_param.data_filler):
        raise step.refuse("it draws random numbers; make its tops inputs of the net")
    to_numpy = step.layer.engine.to_numpy
    return [step.array(to_numpy(blob.data), str(index)) for index, blob in enumerate(step.node.tops)]


@writes("Dropout")
def dropout(step: Step) -> str:
    step.layer_has(dropout_param="scale_train sample_weights_test")
    if step.layer.phase == pb.TRAIN:
        raise step.refuse("it is in phase TRAIN; convert the net in phase TEST")
    if step.layer.drops:
        raise step.refuse("it drops values at random, by sample_weights_test; remove this field")
    ratio = step.array(step.param.dropout_param.dropout_ratio, "ratio")
    return step.op("Dropout", step.times(step.x, step.layer.scale), ratio)  # which does nothing outside of training


@writes("Flatten", "Reshape")
def reshape(step: Step) -> str:
    step.layer_has(flatten_param="axis end_axis", reshape_param="shape axis num_axes")
    return step.reshape(step.x, step.bottoms[0], step.tops[0])


@writes("Concat")
def concat(step: Step) -> str:
    step.layer_has(concat_param="axis concat_dim")
    return step.x if len(step.inputs) == 1 else step.op("Concat", *step.inputs, axis=step.layer.axis)


@writes("Slice")
def cut(step: Step) -> str | list[str]:
    step.layer_has(slice_param="axis slice_dim slice_point")
    axis = step.layer.axis
    return step.x if len(step.tops) == 1 else step.split(step.x, [top[axis] for top in step.tops], axis)


@writes("Crop")
def crop(step: Step) -> str:
    step.layer_has(crop_param="axis offset")
    parts = {axis: part for axis, part in enumerate(step.layer.part) if part.stop is not None}
    return step.slice(step.x, [part.start for part in parts.values()], [part.stop for part in parts.values()], [*parts])


@writes("Tile")
def tile(step: Step) -> str:
    step.layer_has(tile_param="axis")
    repeats = [1] * len(step.bottoms[0])
    repeats[step.layer.axis] = step.param.tile_param.tiles
    return step.op("Tile", step.x, step.integers(repeats, "repeats"))


@writes("Reduction")
def reduction(step: Step) -> str:
    step.layer_has(reduction_param="axis")
    layer = step.layer
    kind = {code: operator for operator, code in REDUCTIONS.items()}[step.param.reduction_param.operation]
    axes = range(layer.axis, len(step.bottoms[0]))
    return step.times(step.reduce(kind, step.x, axes, keepdims=0), step.param.reduction_param.coeff)


@writes("ArgMax")
def argmax(step: Step) -> str:
    """TopK on the reversed axis: of equal values ONNX ranks the smaller index first, and Caffe the larger one."""
    step.layer_has(argmax_param="axis out_max_val")
    layer, p, shape = step.layer, step.param.argmax_param, step.bottoms[0]
    rows = (*shape[:1], math.prod(shape[1:]))
    x = step.x if layer.axis is not None else step.reshape(step.x, shape, rows)
    axis = 1 if layer.axis is None else layer.axis
    length = rows[1] if layer.axis is None else shape[axis]
    values, positions = step.ops("TopK", step.reversed(x, [axis]), step.integers([p.top_k], "k"), outputs=2, axis=axis)
    indices = step.cast(step.op("Sub", step.integers([length - 1], "last"), positions), "FLOAT")
    if layer.axis is not None:
        return values if p.out_max_val else indices
    both = step.op("Concat", indices, values, axis=1) if p.out_max_val else indices
    return step.reshape(both, (shape[0], math.prod(step.tops[0][1:])), step.tops[0])


@writes("BatchReindex")
def batch_reindex(step: Step) -> str:
    return step.op("Gather", step.x, step.cast(step.inputs[1], "INT64"), axis=0)


@writes("Filter")
def choose(step: Step) -> list[str]:
    selector = step.cast(step.reshape(step.inputs[-1], step.bottoms[-1], (step.bottoms[-1][0],)), "BOOL")
    return [step.op("Compress", x, selector, axis=0) for x in step.inputs[:-1]]
