"""Upgrades V1 layers (`layers { type: CONVOLUTION blobs_lr: 1 ... }`) to `layer { type: "Convolution" ... }`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fcaffe import log
from fcaffe.proto import caffe_pb2 as pb

_IRREGULAR = {name.upper(): name for name in ["AbsVal", "ArgMax", "BN", "BNLL", "LRN", "MVN", "ReLU", "TanH"]} | {
    "CONVOLUTION3D": "Convolution",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "NONE": "",
    "POOLING3D": "Pooling",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
}
LAYER_TYPES = {  # the current name of each: ContrastiveLoss for CONTRASTIVE_LOSS
    name: _IRREGULAR.get(name, "".join(map(str.capitalize, name.split("_"))))
    for name in pb.V1LayerParameter.LayerType.keys()  # noqa: SIM118 - an enum of protobuf's is no dictionary
}

# Fields that V1 and current layers have in common, by name and by type.
_SHARED = [
    field
    for field, described in pb.V1LayerParameter.DESCRIPTOR.fields_by_name.items()
    if described.message_type is not None
    and field in pb.LayerParameter.DESCRIPTOR.fields_by_name
    and pb.LayerParameter.DESCRIPTOR.fields_by_name[field].message_type is described.message_type
]

# Fields that V1 layers have a list of: those of each ParamSpec.
_OF_PARAMETERS = {"param": "name", "blob_share_mode": "share_mode", "blobs_lr": "lr_mult", "weight_decay": "decay_mult"}
_TRANSFORMED = {"DATA": "data_param", "IMAGE_DATA": "image_data_param", "WINDOW_DATA": "window_data_param"}

_completions: dict[str, Callable[[Sequence[Any], int], None]] = {}  # by layer type


def register_completion(layer_type: str, complete: Callable[[Sequence[Any], int], None]) -> None:
    """Let `complete(layers, index)` add to each upgraded V1 layer of a type what the V1 notation does not say."""
    _completions[layer_type] = complete


def upgrade_v1_layers(param: pb.NetParameter) -> bool:
    """Replace `layers` by `layer`. Returns False, and logs it, if something was lost. Raises ProtoError."""
    complete, upgraded = True, []
    for index, v1 in enumerate(param.layers):
        if v1.HasField("layer"):
            log.v0_layer_in_v1(index)
            complete = False
        upgraded.append(_upgrade_layer(v1))
    param.ClearField("layers")
    param.layer.extend(upgraded)
    for index, layer in enumerate(param.layer):
        if complete_layer := _completions.get(layer.type):
            complete_layer(param.layer, index)
    return complete


def _upgrade_layer(v1: pb.V1LayerParameter) -> pb.LayerParameter:
    layer = pb.LayerParameter(bottom=v1.bottom, top=v1.top, loss_weight=v1.loss_weight)
    if v1.HasField("name"):
        layer.name = v1.name
    if v1.HasField("type"):
        layer.type = LAYER_TYPES[pb.V1LayerParameter.LayerType.Name(v1.type)]
    for old, new in _OF_PARAMETERS.items():
        for index, value in enumerate(getattr(v1, old)):
            if index == len(layer.param):
                layer.param.add()
            setattr(layer.param[index], new, value)
    for field in _SHARED:
        value = getattr(v1, field)
        if hasattr(value, "extend"):
            getattr(layer, field).extend(value)
        elif v1.HasField(field):
            getattr(layer, field).CopyFrom(value)
    return layer


def find_transform_fields(param: pb.NetParameter) -> list[tuple[Any, Any, str]]:
    """The scale, mean_file, crop_size and mirror of V1 data layers, as (layer, message, field)."""
    return [
        (layer, getattr(layer, source), field)
        for layer in param.layers
        if (source := _TRANSFORMED.get(pb.V1LayerParameter.LayerType.Name(layer.type)))
        for field in ("scale", "mean_file", "crop_size", "mirror")
        if getattr(layer, source).HasField(field)
    ]


def move_transform_fields(found: list[tuple[Any, Any, str]]) -> None:
    """Move these fields to the layers' transform_param."""
    for layer, message, field in found:
        setattr(layer.transform_param, field, getattr(message, field))
        message.ClearField(field)
