"""Upgrades messages of older notations, with Caffe's log lines.

V0 layers become V1 layers, and these current ones. Then input fields become an Input layer, BatchNorm layers lose their
learning rates, and some fields of forks become Caffe's own. A current message does not change, and nothing is logged.
"""

from collections.abc import Callable
from typing import Any

from fcaffe import log, plugins
from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.upgrade_v1 import find_transform_fields, move_transform_fields, upgrade_v1_layers

_SOLVER_TYPES = {name.upper(): name for name in ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")}
_notations: list[Callable[[Any, str], None]] = []


def register_notation(upgrade: Callable[[Any, str], None]) -> None:
    """Let nets be read that have a notation of a fork for what Caffe's own notation can say.

    `upgrade` replaces it in a NetParameter. Its second argument is the file, for the log. It may raise ProtoError.
    """
    _notations.append(upgrade)


def net_is_current(param: pb.NetParameter, name: str) -> bool:
    """Whether `upgrade_net` has nothing to do."""
    upgraded = pb.NetParameter()
    upgraded.CopyFrom(param)
    with log.quiet(level=3):
        upgrade_net(upgraded, name)
    return upgraded == param and not any(map(_has_batch_norm_params, param.layer))


def upgrade_net(param: pb.NetParameter, name: str, fork_fields: bool = True) -> bool:
    """Upgrade a net to the current notation. Returns False, and logs it, if something was lost.

    `name` is its file, for the log and for errors. Without `fork_fields` those of forks stay. Raises ProtoError.
    """
    plugins.load_own("notations")
    complete = True
    try:
        if param.layer and param.layers:
            raise ProtoError(
                "Refusing to upgrade inconsistent NetParameter. This definition includes both 'layer' and 'layers' "
                "fields. Manually switch the definition to 'layer' format to continue: layer { type: \"Pooling\" ... } "
                "instead of layers { type: POOLING ... }"
            )
        if any(layer.HasField("layer") for layer in param.layers):
            from fcaffe.proto.upgrade_v0 import upgrade_v0_layers  # for nets of 2013

            log.upgrading("V0", name)
            complete &= upgrade_v0_layers(param)
            log.upgraded("V0", complete)
        if moved := find_transform_fields(param):
            log.upgrading("transformation", name)
            move_transform_fields(moved)
            log.upgraded("transformation")
        if param.layers:
            log.upgrading("V1", name)
            log.upgraded("V1", v1_complete := upgrade_v1_layers(param))
            complete &= v1_complete
        if param.input:
            _upgrade_input(param, name)
        if any(_has_batch_norm_params(layer) for layer in param.layer):
            _upgrade_batch_norm(param, name)
        for upgrade in _notations if fork_fields else ():
            upgrade(param, name)
    except ProtoError as error:
        raise ProtoError(f"{name}: {error}") from None
    return complete


def upgrade_solver(param: pb.SolverParameter, name: str) -> None:
    """Replace `solver_type` by `type`, and upgrade the nets in a solver. Raises ProtoError."""
    if param.HasField("solver_type"):
        log.upgrading("solver type", name)
        if param.HasField("type"):
            raise ProtoError(
                f"{name}: both solver_type and type are given; remove solver_type, which is the older of the two"
            )
        param.type = _SOLVER_TYPES[pb.SolverParameter.SolverType.Name(param.solver_type)]
        param.ClearField("solver_type")
        log.upgraded("solver type")
    for field in ("net_param", "train_net_param"):
        if param.HasField(field):
            upgrade_net(getattr(param, field), name)
    for net in param.test_net_param:
        upgrade_net(net, name)


def _upgrade_input(param: pb.NetParameter, name: str) -> None:
    log.upgrading("input", name)
    if param.input_shape or param.input_dim:  # older models have inputs without a shape, which are dropped
        shapes = _input_shapes(param)
        layers = [pb.LayerParameter(name="input", type="Input", top=param.input), *param.layer]
        layers[0].input_param.shape.extend(shapes)
        param.ClearField("layer")
        param.layer.extend(layers)
    for field in ("input", "input_shape", "input_dim"):
        param.ClearField(field)
    log.upgraded("input")


def _input_shapes(param: pb.NetParameter) -> list[pb.BlobShape]:
    inputs = len(param.input)
    if param.input_shape:
        if len(param.input_shape) < inputs:
            raise ProtoError(f"{inputs} input fields need {inputs} input_shape, not {len(param.input_shape)}")
        return list(param.input_shape[:inputs])
    if len(param.input_dim) < 4 * inputs:
        raise ProtoError(f"{inputs} input fields need {4 * inputs} input_dim (four each), not {len(param.input_dim)}")
    axes = 5 if len(param.input_dim) == 5 * inputs else 4  # C3D's have five
    return [pb.BlobShape(dim=param.input_dim[axes * i : axes * (i + 1)]) for i in range(inputs)]


def _has_batch_norm_params(layer: pb.LayerParameter) -> bool:
    return layer.type == "BatchNorm" and len(layer.param) == 3


def _upgrade_batch_norm(param: pb.NetParameter, name: str) -> None:
    """The three blobs are running statistics, which must not be trained or decayed, as older files may say."""
    log.upgrading("batch norm", name)
    for layer in filter(_has_batch_norm_params, param.layer):
        for spec in layer.param:
            spec.lr_mult = 0
            spec.decay_mult = 0
    log.upgraded("batch norm")
