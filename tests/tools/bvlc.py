"""Whether BVLC Caffe loads a net: by its schema, its registered layer types, and the checks of its layers' set-up.

The rules are those of Caffe's source. Nets that pass them were written without layers of forks.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from fcaffe.model_files import Model
from fcaffe.onnx.files import deploy_net
from fcaffe.proto import caffe_pb2 as pb

GOLDEN = Path(__file__).parents[1] / "golden/caffe"
NAMES = (
    "AbsVal Accuracy ArgMax BNLL BatchNorm BatchReindex Bias Clip Concat ContrastiveLoss Convolution Crop Data "
    "Deconvolution Dropout DummyData ELU Eltwise Embed EuclideanLoss Exp Filter Flatten HDF5Data HDF5Output HingeLoss "
    "Im2col ImageData InfogainLoss InnerProduct Input LRN LSTM LSTMUnit Log MVN MemoryData MultinomialLogisticLoss "
    "PReLU Parameter Pooling Power Python RNN ReLU Reduction Reshape SPP Scale Sigmoid SigmoidCrossEntropyLoss Silence "
    "Slice Softmax SoftmaxWithLoss Split Swish TanH Threshold Tile WindowData"
)
TYPES = set(NAMES.split())
MOST_AXES = 32


def _rows(name: str) -> list[dict[str, str]]:
    with open(GOLDEN / name, newline="") as file:
        return list(csv.DictReader(file))


FIELDS = {(row["message"], row["field"]): row for row in _rows("schema.csv")}
ENUMS = {(row["enum"], int(row["number"])) for row in _rows("enums.csv")}


def check_message(message: Any) -> None:
    """Assert that BVLC's schema has every field that is set, with this enum value."""
    for field, value in message.ListFields():
        row = FIELDS[message.DESCRIPTOR.name, field.name]  # KeyError: no field of Caffe's
        values = list(value) if row["label"] == "repeated" else [value]
        assert row["label"] == "repeated" or isinstance(value, (bool, int, float, str, bytes)) or row["type_name"]
        if row["type"] == "enum":
            assert all((row["type_name"], int(one)) in ENUMS for one in values), (field.name, values)
        if row["type"] == "message":
            for one in values:
                check_message(one)


def check_net(net: Any, model: Model) -> None:
    """Assert that BVLC Caffe sets up the net, and copies the weights of the model."""
    check_message(net)
    assert len({layer.name for layer in net.layer}) == len(net.layer)
    written: set[str] = set()
    for layer in net.layer:
        assert layer.type in TYPES, layer.type
        assert set(layer.bottom) <= written, layer
        in_place = set(layer.top) & set(layer.bottom)
        assert not in_place and not set(layer.top) & written, layer  # one writer for each blob
        written |= set(layer.top)
    param = pb.NetParameter()
    param.CopyFrom(net)
    param.state.phase = pb.TEST
    ready = deploy_net(param, model)
    stored = {layer.name: layer for layer in model.layers}
    for node in ready.nodes:
        p = node.layer.param
        bottoms, tops = ([blob.shape for blob in blobs] for blobs in (node.bottoms, node.tops))
        assert all(len(shape) <= MOST_AXES and min(shape, default=1) > 0 for shape in bottoms + tops), p
        if p.type == "Split":
            continue
        given = stored[p.name].blobs if p.name in stored else []
        assert [blob.shape for blob in given] == [blob.shape for blob in node.layer.blobs], p
        check_layer(p, bottoms, tops)


def check_layer(p: Any, bottoms: list[tuple[int, ...]], tops: list[tuple[int, ...]]) -> None:
    """Assert what the set-up of Caffe's layer checks."""
    if p.type in ("Pooling", "LRN"):
        assert len(bottoms[0]) == 4, p
    if p.type == "MVN":
        assert len(bottoms[0]) <= 4, p  # it reads num, channels, height and width
    if p.type == "Pooling":
        w = p.pooling_param
        if w.global_pooling:
            assert not w.kernel_size and not w.kernel_h and not w.pad and not w.pad_h and not w.pad_w and w.stride <= 1
        else:
            kernel = (w.kernel_size or w.kernel_h, w.kernel_size or w.kernel_w)
            pad = (w.pad_h, w.pad_w) if w.HasField("pad_h") or w.HasField("pad_w") else (w.pad, w.pad)
            stride = (w.stride_h, w.stride_w) if w.HasField("stride_h") else (w.stride, w.stride)
            assert bool(w.kernel_size) != bool(w.kernel_h and w.kernel_w) and w.HasField("pad_h") == w.HasField("pad_w")
            assert not (w.HasField("pad") and w.HasField("pad_h")) and kernel[0] > pad[0] and kernel[1] > pad[1]
            assert not (w.HasField("stride") and w.HasField("stride_h"))
            for axis in (0, 1):  # the number of windows: rounded up, and none begins in the padding at the end
                n, k, s, b = bottoms[0][2 + axis], kernel[axis], stride[axis], pad[axis]
                span = n + 2 * b - k
                count = (span // s if w.round_mode == pb.PoolingParameter.FLOOR else -(-span // s)) + 1
                if any(pad) and (count - 1) * s >= n + b:
                    count -= 1
                assert count == tops[0][2 + axis], p
    if p.type in ("Convolution", "Deconvolution", "Im2col"):
        w = p.convolution_param
        spatial = len(bottoms[0]) - w.axis - 1
        assert spatial >= 1
        for sizes in (w.kernel_size, w.stride, w.pad, w.dilation):
            assert len(sizes) in (0, 1, spatial), p
        assert not (w.kernel_size and (w.HasField("kernel_h") or w.HasField("kernel_w")))
        if w.HasField("kernel_h") or w.HasField("stride_h") or w.HasField("pad_h"):
            assert spatial == 2, p
        assert not (w.stride and w.HasField("stride_h")) and not (w.pad and w.HasField("pad_h"))
        if p.type != "Im2col":
            assert w.num_output % w.group == 0 and bottoms[0][w.axis] % w.group == 0
    if p.type == "Eltwise":
        assert all(shape == bottoms[0] for shape in bottoms)
        assert len(p.eltwise_param.coeff) in (0, len(bottoms))
        assert not (p.eltwise_param.operation == pb.EltwiseParameter.PROD and p.eltwise_param.coeff)
    if p.type in ("Scale", "Bias") and len(bottoms) == 2:
        axis = p.scale_param.axis if p.type == "Scale" else p.bias_param.axis
        axis += len(bottoms[0]) * (axis < 0)
        assert bottoms[0][axis : axis + len(bottoms[1])] == bottoms[1], p
    if p.type == "Reshape":
        assert sum(dim == -1 for dim in p.reshape_param.shape.dim) <= 1
        assert all(dim or axis < len(bottoms[0]) for axis, dim in enumerate(p.reshape_param.shape.dim))
    if p.type == "Slice":
        points = list(p.slice_param.slice_point)
        assert len(points) == len(tops) - 1 and points == sorted(set(points)) and bottoms[0][p.slice_param.axis]
    if p.type == "DummyData":
        filler = p.dummy_data_param.data_filler
        assert len(p.dummy_data_param.shape) in (1, len(tops)) and [one.type for one in filler] == ["constant"]
    if p.type == "LRN":
        assert p.lrn_param.local_size % 2 == 1
    if p.type == "BatchNorm":
        assert not p.param or all(one.lr_mult == 0 for one in p.param)
    if p.type == "LSTM":
        assert bottoms[1] == bottoms[0][:2] and len(bottoms) == (4 if p.recurrent_param.expose_hidden else 2)
