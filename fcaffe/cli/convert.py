"""`fcaffe convert`: converts models, solver states, nets, solvers and means between formats."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from fcaffe.cli.flags import MODEL, OWN, command, flag, numbers, with_flags
from fcaffe.cli.table import say
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.model_files import read_model, write_model
from fcaffe.onnx.convert import convert as convert_file
from fcaffe.onnx.convert import target_kind
from fcaffe.onnx.library import OPSET, ToOnnx
from fcaffe.output_files import check_output
from fcaffe.proto import read_net, write_text
from fcaffe.tools.merge_bn import merge_bn
from fcaffe.tools.preprocessing import TORCHVISION, of_net
from fcaffe.tools.target import read_target

FORKS = "forks"  # the target of --forks


@dataclass(frozen=True)
class ConvertFlags:
    net: str = flag(
        "FILE",
        "The net: what an .onnx file is to compute, or what a model in HDF5 that Caffe wrote, in ONNX or of PyTorch "
        "leaves out.",
        "--net",
        *MODEL,
    )
    to: str = flag(
        ["bvlc", "nvidia"],
        "Whose form a .caffemodel gets: bvlc, which NVIDIA's fork reads too; or nvidia.",
        default="bvlc",
    )
    check: bool = flag(
        None, "Run both sides on random values and each --input, and print the largest difference.", default=False
    )
    inputs: Sequence[str] = flag(
        "FILE", "Values for --check: .npy, or .npz by name.", "--input", default=(), multiple=True
    )
    toolchain: str | None = flag(
        "NAME|FILE",
        "Write a net, from .onnx or of --model, as this toolchain reads it: bvlc, opencv, tensorrt, nnie, vitis-ai or "
        "ncnn.",
        "--target",
        default=None,
    )
    fold_bn: bool = flag(
        None, "Fold BatchNorm and Scale into the weights before them.", "--fold-bn", "--merge-bn", default=False
    )


@dataclass(frozen=True)
class OnnxFlags:
    mean: str = flag("FILE|N,...", "Subtract a mean from images: a file, or numbers.")
    scale: float = flag("N", "Multiply images by N, after the mean is subtracted.", default=1.0)
    swap_channels: bool = flag(
        None, "Take images in the other order of channels: RGB for BGR.", "--swap-channels", default=False
    )
    opset: int | None = flag("N", "The version of ONNX's operators: 17 to 21 (21).", default=None, type=int)
    shapes: Sequence[str] = flag(
        "NAME:N,C,H,W",
        "The shape of an input that an .onnx file leaves open, for a net.",
        "--input-shape",
        default=(),
        multiple=True,
    )
    forks: bool = flag(None, "Use layers and fields of forks, such as Permute: --target forks.", default=False)
    cut: str = flag(
        "BLOB,...",
        "End a net from .onnx at these values; auto: at the features that the decoding of boxes begins with.",
    )

    @property
    def alters_pictures(self) -> bool:
        return bool(self.mean or self.scale != 1 or self.swap_channels)


@command(
    example="convert net.caffemodel net.onnx --model deploy.prototxt --check",
    help="Write what is in the file IN to the file OUT, in the current notation and in the form that OUT's name ends "
    "in: a model as .caffemodel, .h5, .npz, .safetensors or .dcmodel (or its net as .prototxt), a solver state as "
    ".solverstate or .h5, a net or solver as .prototxt, a mean as .binaryproto or .npy. With its net as --model, "
    "a model becomes an .onnx file, and an .onnx file a model. If IN is a database, its mean image is computed. An "
    ".onnx file of PyTorch, say, becomes a net, OUT, and its WEIGHTS; "
    "so does a model with its --model, for a --target.",
)
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.argument("weights", metavar="[WEIGHTS]", required=False)
@with_flags("flags", ConvertFlags, OWN)
@with_flags("onnx", OnnxFlags, "Flags for .onnx files")
def convert(source: str, target: str, weights: str | None, flags: ConvertFlags, onnx: OnnxFlags) -> int:
    net, inputs = flags.net, flags.inputs
    if source.endswith((".pth", ".pt")):
        raise UsageError(
            f"{source}: to load it is to run the code in it, which fcaffe does not; export the model by "
            "torch.onnx.export, and convert that .onnx (docs/ways-in.md)"
        )
    if onnx.forks and flags.toolchain:
        raise UsageError("--forks is --target forks; give one of the two")
    toolchain = FORKS if onnx.forks else flags.toolchain
    check_output(target, target_kind(target), source, net, weights or "", *inputs)
    if inputs and not flags.check:
        raise UsageError("--input is for --check, which runs both sides on it")
    if weights is not None:
        check_output(weights, target_kind(weights), source, net)
    if toolchain and net and not source.endswith(".onnx"):
        if flags.check or onnx != OnnxFlags(forks=onnx.forks):
            raise UsageError(
                "--target of a net that is not from .onnx goes with --merge-bn alone: leave the others out"
            )
        return _rewrite(source, target, weights, net, toolchain, flags.fold_bn)
    if weights is not None:
        if net or onnx.alters_pictures or onnx.opset or flags.to != "bvlc":
            raise UsageError(
                "with WEIGHTS the net is from IN; --check, --input, --input-shape, --target, --forks, --cut and "
                "--merge-bn go with it"
            )
        options = {
            "shapes": _shapes(onnx.shapes),
            "merge": flags.fold_bn,
            "ends": onnx.cut.split(",") if onnx.cut else [],
        }
        return _convert_onnx(source, target, weights, toolchain, inputs if flags.check else None, **options)
    if onnx.shapes or toolchain or onnx.cut:
        raise UsageError(
            "--input-shape, --target, --forks and --cut are for a net from an .onnx file: convert IN.onnx OUT.prototxt "
            "WEIGHTS; --target and --forks also for the net of --model"
        )
    if target.endswith((".pth", ".pt")):
        raise UsageError(f"{target}: PyTorch loads OUT.safetensors, or OUT.onnx by onnx2torch (docs/ways-out.md)")
    if inputs and not net:
        raise UsageError("--input is for a net, and --check compares weights without one: give it as --model")
    if flags.check and target.endswith(".prototxt"):
        raise UsageError(f"--check compares models, and {target} is a net or solver: leave it out")
    preprocessing, to_onnx = None, None
    if net and target.endswith(".onnx"):
        folder = click.get_current_context().with_resource(tempfile.TemporaryDirectory())
        net, preprocessing = _deployed(net, folder)
    if onnx.alters_pictures:
        from fcaffe.onnx.writing.preprocessing import Preprocessing, read_mean

        preprocessing = Preprocessing(read_mean(onnx.mean) if onnx.mean else None, onnx.scale, onnx.swap_channels)
    if preprocessing is not None or flags.fold_bn or onnx.opset:
        to_onnx = ToOnnx(preprocessing, flags.fold_bn, onnx.opset or OPSET)
    noun = convert_file(source, target, net or None, flags.to, to_onnx, flags.check)
    say(f"{target}: {noun} from {source}")
    if not flags.check:
        return 0
    from fcaffe.onnx.check_conversion import compare

    worst = compare(source, target, net or None, preprocessing, inputs)
    for what, one in worst.items():
        say(f"{what}: largest difference {one.largest:.3g}, in {one.output}, whose values go up to {one.magnitude:.3g}")
    if wrong := [one.output for one in worst.values() if one.too_far()]:
        raise FcaffeError(f"{target} differs from {source} in {', '.join(dict.fromkeys(wrong))}")
    return 0


def _deployed(net: str, folder: str) -> tuple[str, Any]:
    """The path of the net's deploy net, in this folder, and the preprocessing of its data layer.

    A deploy net has its own path, and none.
    """
    from fcaffe.onnx.writing.preprocessing import Preprocessing
    from fcaffe.tools.deploy import deploy_net, is_source, test_layers

    param = read_net(net)
    sources = [layer for layer in test_layers(param).layer if is_source(layer)]
    if all(layer.type == "Input" for layer in sources):
        return net, None
    stated = of_net(param, net)
    if stated.shape is None:
        raise UsageError(f"{net} takes pictures of any size; write its deploy net by fcaffe deploy, and give that")
    path = os.path.join(folder, os.path.basename(net))
    write_text(path, deploy_net(param, {top: (1, *stated.shape) for layer in sources for top in layer.top}))
    colors = "grey values" if stated.shape[0] == 1 else "blue, green and red"
    say(f"The graph takes {colors} from 0 to 255, and does what {stated.origin} does to them")
    return path, Preprocessing(stated.mean, stated.transform.scale)


def _note(producer: str, net: Any) -> str:
    """A comment that says what pictures are to a net of PyTorch, for `fcaffe new`; "" for other nets."""
    inputs = [layer for layer in net.layer if layer.type == "Input"]
    dims = list(inputs[0].input_param.shape[0].dim) if len(inputs) == 1 and inputs[0].input_param.shape else []
    readers = [layer.type for layer in net.layer if inputs and inputs[0].top[0] in layer.bottom]
    if producer != "pytorch" or len(dims) != 4 or dims[1] != 3 or set(readers) != {"Convolution"}:
        return ""
    return TORCHVISION


def _rewrite(source: str, target: str, weights: str | None, net: str, toolchain: str, fold_bn: bool) -> int:
    """Write a net, and its weights where WEIGHTS is named, as a toolchain reads them. Raises FcaffeError."""
    if not target.endswith(".prototxt"):
        raise UsageError(f"--target {toolchain} is for a net, OUT.prototxt, not for {target}")
    if fold_bn and not weights:
        raise UsageError(f"--merge-bn changes the weights: convert {source} {target} WEIGHTS --model {net}")
    param, model = read_net(net), read_model(source)
    names = {layer.name for layer in param.layer}
    if not any(layer.name in names for layer in model.layers if layer.blobs):
        raise UsageError(f"{source} has weights for no layer of {net}; name its own net as --model")
    if fold_bn:
        param, model, _ = merge_bn(param, model)
    write_text(target, read_target(toolchain).fitted(param, net))
    if weights:
        write_model(weights, model)
    say(f"{f'{target}, {weights}' if weights else target}: {len(param.layer)} layers of {net}, for {toolchain}")
    return 0


def _convert_onnx(
    source: str, target: str, weights: str, toolchain: str | None, inputs: Sequence[str] | None, **options: Any
) -> int:
    """Convert an ONNX file to a net and its weights, and check them unless `inputs` is None.

    Layers that are not BVLC Caffe's are refused only if a target is named.
    """
    from fcaffe.onnx.reading.convert import from_onnx
    from fcaffe.tools.target import with_rounding

    if not source.endswith(".onnx") or not target.endswith(".prototxt"):
        raise UsageError(
            f"three files are IN.onnx OUT.prototxt WEIGHTS, in this order; not {source} {target} {weights}"
        )
    reader = read_target(toolchain or "bvlc")
    made = from_onnx(source, target=reader, **options)
    try:
        net = reader.fitted(made.net, source) if toolchain else with_rounding(made.net, reader.rounding)
    except FcaffeError as problem:
        raise FcaffeError(f"{problem}. --cut BLOB,... ends a net before layers at its end") from None
    write_text(target, net, _note(made.producer, net))
    write_model(weights, made.model)
    say(f"{target}, {weights}: {len(made.net.layer)} layers from {source}")
    if inputs is None:
        return 0
    from fcaffe.onnx.check_conversion import check_net

    found, first = check_net(source, made, inputs)
    for one in found:
        say(f"{one.output}: largest difference {one.largest:.3g}, of values up to {one.magnitude:.3g}")
    if first:
        raise FcaffeError(f'{target} differs from {source}, first in layer "{first}"')
    return 0


def _shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of --input-shape by the names of inputs. Raises UsageError."""
    shapes = {}
    for text in given:
        name, colon, dims = text.rpartition(":")
        if not colon:
            raise UsageError(f"--input-shape takes NAME:N,C,H,W with the name of an input, not '{text}'")
        shapes[name] = tuple(numbers("--input-shape", dims))
    return shapes
