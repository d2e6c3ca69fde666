"""Upgrades fields of forks to Caffe's own fields of the same meaning.

`ceil_mode` was proposed for pooling before `round_mode`; DenseNets have it. `hole` is DeepLab's name for `dilation`;
the TSN fork has one for each axis.
"""

from __future__ import annotations

from typing import Any

from fcaffe import log
from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb

_OF_POOLING = ("ceil_mode",)
_OF_CONVOLUTION = ("hole", "hole_h", "hole_w", "dilation_h", "dilation_w")


def has_fork_fields(layer: pb.LayerParameter) -> bool:
    return bool(_given(layer.pooling_param, _OF_POOLING) or _given(layer.convolution_param, _OF_CONVOLUTION))


def upgrade_fork_fields(param: pb.NetParameter, name: str) -> None:
    """Replace the fields of forks in a net. `name` is the file, for the log. Raises ProtoError."""
    became: dict[str, str] = {}
    for layer in filter(has_fork_fields, param.layer):
        if fields := _given(layer.pooling_param, _OF_POOLING):
            mode = pb.PoolingParameter.CEIL if layer.pooling_param.ceil_mode else pb.PoolingParameter.FLOOR
            _replace(layer, layer.pooling_param, fields, "round_mode", mode)
            became["ceil_mode"] = "round_mode"
        if fields := _given(layer.convolution_param, _OF_CONVOLUTION):
            _replace(layer, layer.convolution_param, fields, "dilation", _dilation(layer.convolution_param))
            became.update(dict.fromkeys(fields, "dilation"))
    for old, new in became.items():
        log.info(f"{name}: {old}, a field of forks, is replaced by {new}, Caffe's own")


def _given(message: Any, fields: tuple[str, ...]) -> list[str]:
    return [field for field in fields if message.HasField(field)]


def _dilation(param: Any) -> list[int]:
    """The dilation of height and width, or one value if both are equal."""
    both = [
        next((getattr(param, field) for field in fields if param.HasField(field)), 1)
        for fields in (("hole_h", "dilation_h", "hole"), ("hole_w", "dilation_w", "hole"))
    ]
    return both[:1] if both[0] == both[1] else both


def _replace(layer: Any, param: Any, fields: list[str], own: str, value: Any) -> None:
    """Set Caffe's field `own` to `value`, and clear the fields of the fork. Raises ProtoError if both differ."""
    present = list(param.dilation) if own == "dilation" else [getattr(param, own)] * param.HasField(own)
    wanted = value if own == "dilation" else [value]
    if present and present not in (wanted, wanted * 2):  # one for all axes, or one for each
        raise ProtoError(
            f'layer "{layer.name}": {" and ".join(fields)} and {own} contradict each other; remove '
            f"{' and '.join(fields)}, which BVLC Caffe does not have"
        )
    for field in fields:
        param.ClearField(field)
    if own == "dilation":
        param.dilation[:] = wanted
    else:
        setattr(param, own, value)
