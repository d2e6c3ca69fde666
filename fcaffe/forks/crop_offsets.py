"""Offsets of V1 layers of type CROP, which forks compute from the layers between the two bottoms.

Each layer between maps positions of its bottom to positions of its top, along height and along width, by a scale and a
shift. A blob from which both bottoms are computed thus gives the offset of one to the other:

    conv (kernel 3, stride 2): data -> a    deconvolution (kernel 4, stride 2): a -> b    CROP: b, data -> c    offset 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcaffe.errors import ProtoError

Map = tuple[np.ndarray, np.ndarray]  # scales and shifts of height and width

ROUNDING = 1e-6
IDENTITY: Map = (np.ones(2), np.zeros(2))
_PASSING = (
    *("AbsVal", "BatchNorm", "BN", "BNLL", "Dropout", "Eltwise", "Exp", "LRN", "MVN", "Power", "PReLU", "ReLU"),
    *("Concat", "Scale", "Sigmoid", "Softmax", "Split", "TanH", "Threshold"),
)


def crop_offsets(layers: Sequence[Any], index: int) -> list[int]:
    """The offsets of height and width for the Crop `layers[index]`. Raises ProtoError if they do not follow."""
    crop = layers[index]
    maps = [_origins(layers, index, name) for name in crop.bottom]
    for origin in maps[0].keys() & maps[-1].keys() if len(maps) == 2 else ():
        (scales, shifts), (other_scales, other_shifts) = maps[0][origin], maps[1][origin]
        offsets = np.round(shifts - other_shifts)
        errors = [*abs(scales - other_scales), *abs(shifts - other_shifts - offsets)]
        if max(errors) < ROUNDING and min(offsets) >= 0:
            return [int(offset) for offset in offsets]
    raise ProtoError(
        f'layer "{crop.name}" (CROP): its offset does not follow from the layers between {" and ".join(crop.bottom)}; '
        'write it as layer { type: "Crop" crop_param { offset: ... } }'
    )


def _origins(layers: Sequence[Any], index: int, name: str) -> dict[tuple[int, str], Map]:
    """The blobs from which bottom `name` of `layers[index]` is computed, each by the index of the layer that writes it
    (-1: an input) and its name, with the map from its positions to those of the bottom."""
    found: dict[tuple[int, str], Map] = {}
    waiting = [(index, name, IDENTITY)]
    while waiting:
        reader, blob, to_end = waiting.pop()
        writer = next((i for i in range(reader - 1, -1, -1) if blob in layers[i].top), -1)
        if (writer, blob) in found:
            continue
        found[writer, blob] = to_end
        step = _map_of(layers[writer]) if writer >= 0 else None
        if step is not None:
            bottoms = layers[writer].bottom[:1] if layers[writer].type == "Crop" else layers[writer].bottom
            composed = step[0] * to_end[0], step[1] * to_end[0] + to_end[1]
            waiting += [(writer, bottom, composed) for bottom in bottoms]
    return found


def _map_of(layer: Any) -> Map | None:
    """From positions of the bottom to positions of the top; None if the layer has no such map."""
    if layer.type in _PASSING:
        return IDENTITY
    if layer.type == "Crop":
        return np.ones(2), -np.resize([*layer.crop_param.offset] or [0], 2).astype(float)
    if layer.type not in ("Convolution", "Deconvolution", "Pooling"):
        return None
    p = layer.pooling_param if layer.type == "Pooling" else layer.convolution_param
    kernel, stride, pad = _sizes(p, "kernel_size", 1), _sizes(p, "stride", 1), _sizes(p, "pad", 0)
    if layer.type != "Pooling":
        kernel = (kernel - 1) * _sizes(p, "dilation", 1) + 1
    if layer.type == "Deconvolution":
        return stride, (kernel - 1) / 2 - pad
    return 1 / stride, (pad - (kernel - 1) / 2) / stride


def _sizes(p: Any, field: str, default: int) -> np.ndarray:
    """A field of a convolution or pooling for height and width."""
    value = getattr(p, field)
    sizes = np.resize(value if isinstance(value, int) else [*value] or [default], 2).astype(float)
    for axis, letter in enumerate("hw"):
        single = f"{field.removesuffix('_size')}_{letter}"
        if p.HasField(single):
            sizes[axis] = getattr(p, single)
    return sizes
