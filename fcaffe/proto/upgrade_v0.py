"""Upgrades V0 layers (`layers { layer { type: "conv" kernelsize: 5 ... } bottom: ... }`) to V1."""

from typing import Any

from fcaffe import log
from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb

_RENAMED = {"conv": "CONVOLUTION", "images": "IMAGE_DATA", "innerproduct": "INNER_PRODUCT", "pool": "POOLING"}
_KEPT = (
    "accuracy bnll concat data dropout euclidean_loss flatten hdf5_data hdf5_output im2col infogain_loss lrn "
    "multinomial_logistic_loss relu sigmoid softmax softmax_loss split tanh window_data"
)
LAYER_TYPES = {**{name: name.upper() for name in _KEPT.split()}, **_RENAMED}  # to those of V1

_CONV = {"conv": "convolution_param"}
_POOL = {"pool": "pooling_param"}
_WEIGHTED = {**_CONV, "innerproduct": "inner_product_param"}
_WINDOWED = {**_CONV, **_POOL}
_LRN = {"lrn": "lrn_param"}
_IMAGES = {"images": "image_data_param"}
_WINDOW_DATA = {"window_data": "window_data_param"}
_READERS = {"data": "data_param", "hdf5_data": "hdf5_data_param", **_IMAGES, **_WINDOW_DATA}

# V0 field: its current name, and for each V0 type that has it, its current message.
_FIELDS: dict[str, tuple[str, dict[str, str]]] = {
    "num_output": ("num_output", _WEIGHTED),
    "biasterm": ("bias_term", _WEIGHTED),
    "weight_filler": ("weight_filler", _WEIGHTED),
    "bias_filler": ("bias_filler", _WEIGHTED),
    "pad": ("pad", _WINDOWED),
    "kernelsize": ("kernel_size", _WINDOWED),
    "group": ("group", _CONV),
    "stride": ("stride", _WINDOWED),
    "pool": ("pool", _POOL),
    "dropout_ratio": ("dropout_ratio", {"dropout": "dropout_param"}),
    "local_size": ("local_size", _LRN),
    "alpha": ("alpha", _LRN),
    "beta": ("beta", _LRN),
    "k": ("k", _LRN),
    "source": ("source", {**_READERS, "infogain_loss": "infogain_loss_param"}),
    "batchsize": ("batch_size", _READERS),
    "rand_skip": ("rand_skip", {"data": "data_param", **_IMAGES}),
    "shuffle_images": ("shuffle", _IMAGES),
    "new_height": ("new_height", _IMAGES),
    "new_width": ("new_width", _IMAGES),
    "concat_dim": ("concat_dim", {"concat": "concat_param"}),
    "det_fg_threshold": ("fg_threshold", _WINDOW_DATA),
    "det_bg_threshold": ("bg_threshold", _WINDOW_DATA),
    "det_fg_fraction": ("fg_fraction", _WINDOW_DATA),
    "det_context_pad": ("context_pad", _WINDOW_DATA),
    "det_crop_mode": ("crop_mode", _WINDOW_DATA),
    "hdf5_output_param": ("", {"hdf5_output": "hdf5_output_param"}),  # the whole message
}

# These moved to transform_param, for all types.
_TRANSFORM_FIELDS = {"scale": "scale", "meanfile": "mean_file", "cropsize": "crop_size", "mirror": "mirror"}


def upgrade_v0_layers(param: pb.NetParameter) -> bool:
    """Replace V0 by V1 layers. Returns False, and logs it, if a layer has a field that its type does not have."""
    connections = _fold_padding(param)
    complete = True
    upgraded = pb.NetParameter(input=param.input, input_dim=param.input_dim)
    for field in ("name", "force_backward"):
        if param.HasField(field):
            setattr(upgraded, field, getattr(param, field))
    for connection in connections:
        complete &= _upgrade_layer(connection, upgraded.layers.add())
    param.CopyFrom(upgraded)
    return complete


def _fold_padding(param: pb.NetParameter) -> list[pb.V1LayerParameter]:
    """All layers except padding layers, whose pad moves to the convolution or pooling behind them."""
    producer: dict[str, pb.V1LayerParameter | None] = dict.fromkeys(param.input)
    others = []
    for connection in param.layers:
        layer = connection.layer
        folded = pb.V1LayerParameter()
        folded.CopyFrom(connection)
        for index, blob in enumerate(connection.bottom):
            if blob not in producer:
                raise ProtoError(f'layer "{layer.name}": unknown bottom "{blob}"; no earlier layer has it as its top')
            source = producer[blob]
            if source is None or source.layer.type != "padding":
                continue
            if layer.type not in _WINDOWED:
                raise ProtoError(
                    f'layer "{layer.name}" of type {layer.type} reads the padding layer "{source.layer.name}";'
                    " only conv and pool layers may"
                )
            if len(connection.bottom) != 1 or len(source.bottom) != 1 or len(source.top) != 1:
                raise ProtoError(
                    f'layer "{layer.name}" and its padding layer "{source.layer.name}" must have one bottom each,'
                    " and the padding layer one top"
                )
            folded.layer.pad = source.layer.pad
            folded.bottom[index] = source.bottom[0]
        if layer.type != "padding":
            others.append(folded)
        producer.update(dict.fromkeys(connection.top, connection))
    return others


def _upgrade_layer(connection: pb.V1LayerParameter, v1: pb.V1LayerParameter) -> bool:
    v1.bottom.extend(connection.bottom)
    v1.top.extend(connection.top)
    v0 = connection.layer
    if v0.HasField("name"):
        v1.name = v0.name
    if v0.HasField("type"):
        if v0.type not in LAYER_TYPES:
            raise ProtoError(
                f'layer "{v0.name}": unknown V0 layer type "{v0.type}"; known: {", ".join(sorted(LAYER_TYPES))}'
            )
        v1.type = pb.V1LayerParameter.LayerType.Value(LAYER_TYPES[v0.type])
    v1.blobs.extend(v0.blobs)
    v1.blobs_lr.extend(v0.blobs_lr)
    v1.weight_decay.extend(v0.weight_decay)
    for field, name in _TRANSFORM_FIELDS.items():
        if v0.HasField(field):
            setattr(v1.transform_param, name, getattr(v0, field))
    complete = True
    for field, (name, types) in _FIELDS.items():
        if not v0.HasField(field):
            continue
        if v0.type in types:
            target = (getattr(v1, types[v0.type]), name) if name else (v1, types[v0.type])
            _assign(*target, getattr(v0, field))
        else:
            log.unknown_v0_parameter(field, v0.type)
            complete = False
    return complete


def _assign(message: Any, field: str, value: Any) -> None:
    target = getattr(message, field)
    if hasattr(target, "CopyFrom"):
        target.CopyFrom(value)
    elif hasattr(target, "append"):  # kernel_size, stride and pad of a convolution became lists
        target.append(value)
    else:
        setattr(message, field, value)
