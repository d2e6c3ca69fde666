"""Offsets of V1 layers of type CROP, which forks compute from the layers between the two bottoms.

conv (kernel 3, stride 2): data -> a    deconvolution (kernel 4, stride 2): a -> b    CROP: b, data -> c    offset 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcaffe.errors import ProtoError
from fcaffe.pycaffe.coord_map import crop
from fcaffe.pycaffe.net_spec import Function, Top

_PASSING = ("BN", "Concat", "Softmax")  # types that keep positions, besides those of `coord_map`


def crop_offsets(layers: Sequence[Any], index: int) -> list[int]:
    """The offsets of height and width for the Crop `layers[index]`. Raises ProtoError if they do not follow."""
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
    return np.resize(top.fn.params["crop_param"]["offset"], 2).tolist()


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
