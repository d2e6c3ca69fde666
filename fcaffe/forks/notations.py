"""Upgrades fields of forks to Caffe's own fields of the same meaning.

`ceil_mode` was proposed for pooling before `round_mode`; DenseNets have it. `torch_pooling` rounds down, as Torch does.
`hole` is DeepLab's name for `dilation`; the TSN fork has one for each axis. With `relu` a layer of Intel's fork applies
a ReLU, which becomes a layer of its own. Forks for videos have types of layers for windows over three axes, or fields
for their depth; Caffe's convolution has one number an axis, and pooling has it in Intel's fields (`kernel_size_3d`).
V1 layers of type CROP have no offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.forks import OF_AXES, OF_DEPTH
from fcaffe.proto.upgrade import register_notation
from fcaffe.proto.upgrade_v1 import register_completion

_TYPES = {
    **dict.fromkeys(("Convolution3D", "NdConvolution"), "Convolution"),
    **dict.fromkeys(("Pooling3D", "NdPooling", "PoolingND"), "Pooling"),
}
_OF_WINDOWS = (("kernel_size", "kernel", 0), ("stride", "stride", 1), ("pad", "pad", 0))
_OF_POOLING = ("ceil_mode", "torch_pooling")
_OF_CONVOLUTION = ("hole", "hole_h", "hole_w", "dilation_h", "dilation_w")
_OF_RELU = ("relu", "negative_slope")
_PASSING = ("BN", "Concat", "Softmax")  # types that keep positions, besides those of `coord_map`


def upgrade_fork_fields(param: pb.NetParameter, name: str) -> None:
    """Replace the fields of forks in a net. `name` is the file, for the log. Raises ProtoError."""
    became: dict[str, str] = {}
    layers = []
    for layer in param.layer:
        layers.append(layer)
        if layer.type in _TYPES:
            became[layer.type] = _TYPES[layer.type]
            _upgrade_type(layer)
        for own in layer.pooling_param, layer.convolution_param:
            if fields := _given(own, OF_AXES):
                _upgrade_axes(layer, own)
                became.update(dict.fromkeys(fields, "one number for each axis"))
        for field in _given(layer.pooling_param, _OF_POOLING):
            rounds_up = getattr(layer.pooling_param, field) == (field == "ceil_mode")
            mode = pb.PoolingParameter.CEIL if rounds_up else pb.PoolingParameter.FLOOR
            _replace(layer, layer.pooling_param, [field], "round_mode", mode)
            became[field] = "round_mode"
        if fields := _given(layer.convolution_param, _OF_CONVOLUTION):
            _replace(layer, layer.convolution_param, fields, "dilation", _dilation(layer.convolution_param))
            became.update(dict.fromkeys(fields, "dilation"))
        for own in _with_relu(layer):
            if own.relu:
                layers += _relus_behind(layer, own)
                became["relu"] = "a ReLU layer"
            for field in _given(own, _OF_RELU):
                own.ClearField(field)
    if len(layers) > len(param.layer):
        param.ClearField("layer")
        param.layer.extend(layers)
    for old, new in became.items():
        log.info(f"{name}: {old}, a {'type' if old in _TYPES else 'field'} of forks, is replaced by {new}")


def _upgrade_type(layer: Any) -> None:
    layer.type = _TYPES[layer.type]
    for own, other in (("pooling_param", "pooling3d_param"), ("convolution_param", "convolution3d_param")):
        if layer.HasField(other):
            getattr(layer, own).MergeFrom(getattr(layer, other))
            layer.ClearField(other)


def _upgrade_axes(layer: Any, p: Any) -> None:
    """Write one number for each axis in `p`, from shapes or from (depth, height, width). Raises ProtoError.

    If the depth's field is missing, stride 1 and padding 0 are meant in C3D, and the sides' with names that end in _d.
    """
    repeated = isinstance(p, pb.ConvolutionParameter)
    has_depth, of_c3d = _given(p, OF_DEPTH), _given(p, OF_DEPTH[:3])
    for (own, stem, default), of_depth in zip(_OF_WINDOWS, OF_DEPTH, strict=False):
        present = list(getattr(p, own)) if repeated else [getattr(p, own)] * p.HasField(own)
        sides, shape, depths = (f"{stem}_h", f"{stem}_w"), f"{stem}_shape", (of_depth, f"{stem}_d")
        numbers = list(getattr(p, shape).dim)
        if numbers and present:
            raise ProtoError(f'layer "{layer.name}": {shape} and {own} contradict each other; remove one of them')
        if has_depth and not numbers:
            every = present[0] if present else default
            depth = next((getattr(p, field) for field in _given(p, depths)), default if of_c3d else every)
            numbers = [depth, *(getattr(p, side) if p.HasField(side) else every for side in sides)]
        if numbers:
            for field in (own, shape, *depths, *sides):
                p.ClearField(field)
            getattr(p, own if repeated else f"{own}_3d").extend(numbers)


def _given(message: Any, fields: tuple[str, ...]) -> list[str]:
    return [field for field in fields if field in message.DESCRIPTOR.fields_by_name and message.HasField(field)]


def _with_relu(layer: Any) -> tuple[Any, ...]:
    """The messages of a layer that have the field `relu`."""
    return layer.convolution_param, layer.inner_product_param, layer.batch_norm_param


def _relus_behind(layer: Any, param: Any) -> list[Any]:
    """An in-place ReLU for each top of the layer, by the fields of its message `param`."""
    slope = getattr(param, "negative_slope", 0)
    relus = []
    for index, top in enumerate(layer.top):
        relu = pb.LayerParameter(name=f"{layer.name}/relu{index or ''}", type="ReLU", bottom=[top], top=[top])
        if slope:
            relu.relu_param.negative_slope = slope
        relu.include.extend(layer.include)
        relu.exclude.extend(layer.exclude)
        relus.append(relu)
    return relus


def _dilation(param: Any) -> list[int]:
    """The dilation of height and width, or one value if both are equal."""
    both = [
        next((getattr(param, field) for field in fields if param.HasField(field)), 1)
        for fields in (("hole_h", "dilation_h", "hole"), ("hole_w", "dilation_w", "hole"))
    ]
    return both[:1] if both[0] == both[1] else both


def _replace(layer: Any, param: Any, fields: list[str], own: str, value: Any) -> None:
    """Set Caffe's field `own` to `value`, and clear the fields of the fork. Raises ProtoError if both differ."""
    new = type(param)(**{own: value})
    present = next((found for field, found in param.ListFields() if field.name == own), value)
    if present not in (value, value * 2 if isinstance(value, list) else value):  # one for all axes, or one for each
        raise ProtoError(
            f'layer "{layer.name}": {" and ".join(fields)} and {own} contradict each other; remove '
            f"{' and '.join(fields)}, which BVLC Caffe does not have"
        )
    for field in (*fields, own):
        param.ClearField(field)
    param.MergeFrom(new)


def complete_crop(layers: Sequence[Any], index: int) -> None:
    """Set the offsets of height and width of a Crop of the V1 notation, which follow from the layers before.

    conv (kernel 3, stride 2): data -> a    deconvolution (kernel 4, stride 2): a -> b    CROP: b, data -> c    offset 1

    Raises ProtoError if they do not follow.
    """
    from fcaffe.pycaffe.coord_map import crop  # few nets have such layers
    from fcaffe.pycaffe.net_spec import Function, Top

    blobs: dict[str, Top] = {}  # as they are in front of the Crop

    def read(name: str) -> Top:
        return blobs.setdefault(name, Function("Input", (), {}).tops[0])

    for layer in layers[:index]:
        type_name = "Split" if layer.type in _PASSING else layer.type
        params = {"ntop": len(layer.top), **_params(layer)}
        blobs.update(zip(layer.top, Function(type_name, map(read, layer.bottom), params).tops, strict=True))
    crop_layer = layers[index]
    try:
        top = crop(*map(read, crop_layer.bottom))
    except (AssertionError, RuntimeError, TypeError) as problem:
        raise ProtoError(
            f'layer "{crop_layer.name}" (CROP): its offset does not follow from the layers between '
            f'{" and ".join(crop_layer.bottom)} ({problem}); write it as layer {{ type: "Crop" crop_param '
            "{ offset: ... } }"
        ) from problem
    crop_layer.crop_param.offset.extend(np.resize(top.fn.params["crop_param"]["offset"], 2).tolist())


def _params(layer: Any) -> dict[str, Any]:
    """The parameters that `coord_map` reads, with a value each for height and width."""
    if layer.type == "Crop":
        return {"offset": list(layer.crop_param.offset) or 0}
    if layer.type not in ("Convolution", "Deconvolution", "Pooling"):
        return {}
    param = layer.pooling_param if layer.type == "Pooling" else layer.convolution_param
    return {name: _sizes(param, name) for name in ("kernel_size", "stride", "pad", "dilation")}


def _sizes(param: Any, field: str) -> list[int]:
    value = getattr(param, field, 1)  # a Pooling has no dilation
    sizes = [value] * 2 if isinstance(value, int) else np.resize([*value] or int(field != "pad"), 2).tolist()
    for axis, letter in enumerate("hw"):
        single = f"{field.removesuffix('_size')}_{letter}"
        if single in param.DESCRIPTOR.fields_by_name and param.HasField(single):
            sizes[axis] = getattr(param, single)
    return sizes


register_notation(upgrade_fork_fields)
register_completion("Crop", complete_crop)
