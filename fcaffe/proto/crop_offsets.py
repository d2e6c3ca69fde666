"""Offsets of V1 layers of type CROP, which forks compute from the layers between the two bottoms.

Each layer between maps positions of its bottom to positions of its top, along height and along width, by a scale and a
shift. A blob from which both bottoms are computed thus gives the offset of one to the other:

    conv (kernel 3, stride 2): data -> a    deconvolution (kernel 4, stride 2): a -> b    CROP: b, data -> c    offset 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fcaffe.errors import ProtoError

Map = tuple[tuple[float, float], ...]  # (scale, shift) of height and width

ROUNDING = 1e-6
IDENTITY: Map = ((1.0, 0.0), (1.0, 0.0))
_PASSING = (
    *("AbsVal", "BatchNorm", "BN", "BNLL", "Dropout", "Eltwise", "Exp", "LRN", "MVN", "Power", "PReLU", "ReLU"),
    *("Concat", "Scale", "Sigmoid", "Softmax", "Split", "TanH", "Threshold"),
)


def crop_offsets(layers: Sequence[Any], index: int) -> list[int]:
    """The offsets of height and width for the Crop `layers[index]`. Raises ProtoError if they do not follow."""
    crop = layers[index]
    maps = [_origins(layers, index, name) for name in crop.bottom]
    for origin in maps[0].keys() & maps[-1].keys() if len(maps) == 2 else ():
        pairs = list(zip(maps[0][origin], maps[1][origin], strict=True))
        offsets = [round(first[1] - second[1]) for first, second in pairs]
        errors = [abs(first[0] - second[0]) for first, second in pairs]
        errors += [abs(first[1] - second[1] - offset) for (first, second), offset in zip(pairs, offsets, strict=True)]
        if max(errors) < ROUNDING and min(offsets) >= 0:
            return offsets
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
            waiting += [(writer, bottom, _composed(step, to_end)) for bottom in bottoms]
    return found


def _composed(first: Map, second: Map) -> Map:
    return tuple((a[0] * b[0], a[1] * b[0] + b[1]) for a, b in zip(first, second, strict=True))


def _map_of(layer: Any) -> Map | None:
    """From positions of the bottom to positions of the top; None if the layer has no such map."""
    if layer.type in _PASSING:
        return IDENTITY
    if layer.type == "Crop":
        offsets = [*layer.crop_param.offset] or [0]
        return tuple((1.0, -float(offset)) for offset in (offsets * 2)[:2])
    if layer.type not in ("Convolution", "Deconvolution", "Pooling"):
        return None
    p = layer.pooling_param if layer.type == "Pooling" else layer.convolution_param
    maps = []
    for axis, letter in enumerate("hw"):
        kernel = _size(p, "kernel_size", f"kernel_{letter}", axis, 1)
        if layer.type != "Pooling":
            kernel = (kernel - 1) * _size(p, "dilation", f"dilation_{letter}", axis, 1) + 1
        stride, pad = (
            _size(p, field, f"{field}_{letter}", axis, least) for field, least in (("stride", 1), ("pad", 0))
        )
        if layer.type == "Deconvolution":
            maps.append((float(stride), (kernel - 1) / 2 - pad))
        else:
            maps.append((1 / stride, (pad - (kernel - 1) / 2) / stride))
    return tuple(maps)


def _size(p: Any, field: str, single: str, axis: int, default: int) -> int:
    """A field of a convolution or pooling for one axis."""
    if p.HasField(single):
        return int(getattr(p, single))
    value = getattr(p, field)
    values = [value] if isinstance(value, int) else [*value] or [default]
    return int(values[axis if len(values) > 1 else 0])
