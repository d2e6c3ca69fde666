"""Log lines about upgrades of older notations."""

from __future__ import annotations

from fcaffe.log.lines import error, info, warning
from fcaffe.log.sentence import Sentence

# Line of upgrade_proto.cpp that reports each field of a V0 layer.
_V0_FIELDS = {
    "num_output": 237, "biasterm": 249, "weight_filler": 261, "bias_filler": 273, "pad": 283, "kernelsize": 295,
    "group": 304, "stride": 316, "pool": 341, "dropout_ratio": 350, "local_size": 359, "alpha": 367, "beta": 375,
    "k": 383, "source": 403, "batchsize": 429, "rand_skip": 449, "shuffle_images": 458, "new_height": 467,
    "new_width": 476, "concat_dim": 485, "det_fg_threshold": 494, "det_bg_threshold": 504, "det_fg_fraction": 514,
    "det_context_pad": 524, "det_crop_mode": 534, "hdf5_output_param": 544,
}  # fmt: skip


def _attempting(what: str, line: int) -> Sentence:
    text = f"Attempting to upgrade input file specified using deprecated {what}: {{path}}"
    return Sentence(text, f"upgrade_proto.cpp:{line}")


def _successful(what: str, line: int) -> None:
    info(f"Successfully upgraded file specified using deprecated {what}", f"upgrade_proto.cpp:{line}")


def _problems(what: str, line: int) -> None:
    message = f"Warning: had one or more problems upgrading {what} (see above); continuing anyway."
    error(message, f"upgrade_proto.cpp:{line}")


def _future(what: str, line: int) -> None:
    warning(f"Note that future Caffe releases will {what}.", f"upgrade_proto.cpp:{line}")


upgrading_v0 = _attempting("V0LayerParameter", 28)
upgrading_transformation = _attempting("transformation parameters", 46)
upgrading_v1 = _attempting("V1LayerParameter", 55)
upgrading_input = _attempting("input fields", 69)
upgrading_batch_norm = Sentence(
    "Attempting to upgrade batch norm layers using deprecated params: {path}", "upgrade_proto.cpp:79"
)
upgraded_batch_norm = Sentence(
    "Successfully upgraded batch norm layers using deprecated params.", "upgrade_proto.cpp:82"
)
upgrading_solver_type = _attempting("'solver_type' field (enum)'", 1084)


def upgraded_v0(complete: bool) -> None:
    if complete:
        _successful("V0LayerParameter", 36)
    else:
        _problems("V0NetParameter to NetParameter", 33)
    _future(
        "not support V0NetParameter; use ./build/tools/upgrade_net_proto_text for prototxt and "
        "./build/tools/upgrade_net_proto_binary for model weights upgrade this and any other net protos to the new "
        "format",
        39,
    )


def unknown_v0_parameter(field: str, kind: str) -> None:
    """A V0 layer of this type has no such field."""
    error(f"Unknown parameter {field} for layer type {kind}", f"upgrade_proto.cpp:{_V0_FIELDS[field]}")


def upgraded_transformation() -> None:
    _successful("data transformation parameters.", 49)
    _future("only support transform_param messages for transformation fields", 51)


# A net has both notations. Caffe 1.0 fails at this line; the text is that of earlier versions.
layer_beside_layers = Sentence(
    "Input NetParameter to be upgraded already specifies 'layer' fields; these will be ignored for the upgrade.",
    "upgrade_proto.cpp:671",
    "E",
)


def v0_layer_in_v1(index: int) -> None:
    error("Input NetParameter has V0 layer -- ignoring.", "upgrade_proto.cpp:870")
    error(f"Upgrade of input layer {index} failed.", "upgrade_proto.cpp:684")


def upgraded_v1(complete: bool) -> None:
    if complete:
        _successful("V1LayerParameter", 63)
    else:
        _problems("V1LayerParameter", 60)


def upgraded_input() -> None:
    _successful("input fields.", 72)
    _future("only support input layers and not input fields", 74)


def upgraded_solver_type() -> None:
    _successful("'solver_type' field (enum) to 'type' field (string).", 1091)
    _future("only support 'type' field (string) for a solver's type", 1093)
