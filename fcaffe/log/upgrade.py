"""Log lines about upgrades of older notations."""

from __future__ import annotations

from fcaffe.log.lines import Sentence, error, info, warning

# Line of upgrade_proto.cpp that reports each field of a V0 layer.
_V0_FIELDS = {
    "num_output": 237, "biasterm": 249, "weight_filler": 261, "bias_filler": 273, "pad": 283, "kernelsize": 295,
    "group": 304, "stride": 316, "pool": 341, "dropout_ratio": 350, "local_size": 359, "alpha": 367, "beta": 375,
    "k": 383, "source": 403, "batchsize": 429, "rand_skip": 449, "shuffle_images": 458, "new_height": 467,
    "new_width": 476, "concat_dim": 485, "det_fg_threshold": 494, "det_bg_threshold": 504, "det_fg_fraction": 514,
    "det_context_pad": 524, "det_crop_mode": 534, "hdf5_output_param": 544,
}  # fmt: skip


_INPUT_FILE = "input file specified using deprecated "
_FILE = "file specified using deprecated "

# For each old notation: what is upgraded, what was upgraded, and what future releases will do, with the lines of
# upgrade_proto.cpp.
_UPGRADES: dict[str, tuple[tuple[str, int], ...]] = {
    "V0": (
        (f"{_INPUT_FILE}V0LayerParameter", 28),
        (f"{_FILE}V0LayerParameter", 36),
        (
            "not support V0NetParameter; use ./build/tools/upgrade_net_proto_text for prototxt and "
            "./build/tools/upgrade_net_proto_binary for model weights upgrade this and any other net protos to the new "
            "format",
            39,
        ),
    ),
    "transformation": (
        (f"{_INPUT_FILE}transformation parameters", 46),
        (f"{_FILE}data transformation parameters.", 49),
        ("only support transform_param messages for transformation fields", 51),
    ),
    "V1": ((f"{_INPUT_FILE}V1LayerParameter", 55), (f"{_FILE}V1LayerParameter", 63)),
    "input": (
        (f"{_INPUT_FILE}input fields", 69),
        (f"{_FILE}input fields.", 72),
        ("only support input layers and not input fields", 74),
    ),
    "batch norm": (
        ("batch norm layers using deprecated params", 79),
        ("batch norm layers using deprecated params.", 82),
    ),
    "solver type": (
        (f"{_INPUT_FILE}'solver_type' field (enum)'", 1084),
        (f"{_FILE}'solver_type' field (enum) to 'type' field (string).", 1091),
        ("only support 'type' field (string) for a solver's type", 1093),
    ),
}
_PROBLEMS = {"V0": ("V0NetParameter to NetParameter", 33), "V1": ("V1LayerParameter", 60)}


def upgrading(notation: str, path: str) -> None:
    """The upgrade of an old notation, a key of _UPGRADES, begins."""
    what, line = _UPGRADES[notation][0]
    info(f"Attempting to upgrade {what}: {path}", f"upgrade_proto.cpp:{line}")


def upgraded(notation: str, complete: bool = True) -> None:
    """The upgrade has ended; it is not `complete` if something was lost."""
    _, (what, line), *future = _UPGRADES[notation]
    if complete:
        info(f"Successfully upgraded {what}", f"upgrade_proto.cpp:{line}")
    else:
        what, line = _PROBLEMS[notation]
        message = f"Warning: had one or more problems upgrading {what} (see above); continuing anyway."
        error(message, f"upgrade_proto.cpp:{line}")
    for what, line in future:
        warning(f"Note that future Caffe releases will {what}.", f"upgrade_proto.cpp:{line}")


def unknown_v0_parameter(field: str, kind: str) -> None:
    """A V0 layer of this type has no such field."""
    error(f"Unknown parameter {field} for layer type {kind}", f"upgrade_proto.cpp:{_V0_FIELDS[field]}")


v0_layer_in_v1 = Sentence(
    "Input NetParameter has V0 layer -- ignoring.", "upgrade_proto.cpp:870",
    "Upgrade of input layer {index:d} failed.", "upgrade_proto.cpp:684",
    level="E",
)  # fmt: skip
