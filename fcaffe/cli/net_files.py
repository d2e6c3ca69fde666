"""Commands that convert or draw the files of a net: `upgrade_*` and `draw_net` of Caffe, and `merge-bn`."""

from __future__ import annotations

import os

import click

from fcaffe import log, proto
from fcaffe.cli.flags import command, required
from fcaffe.cli.table import say
from fcaffe.errors import ProtoError, SnapshotError, UsageError
from fcaffe.model_files import read_model, write_model
from fcaffe.onnx.convert import target_kind
from fcaffe.output_files import PICTURE, check_output
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import MODEL, read_binary
from fcaffe.proto.text import PROTOTXT, read_text
from fcaffe.proto.upgrade import net_is_current, upgrade_net, upgrade_solver
from fcaffe.tools.merge_bn import merge_bn as merge

PHASES = {"TRAIN": pb.TRAIN, "TEST": pb.TEST, "ALL": None}
LONG = 60  # layers; in a row they are some ten thousand pixels wide


def _command(name: str, noun: str, ending: str) -> click.Command:
    def run(words: tuple[str, ...]) -> int:
        return upgrade(name, *required(words, 2))

    text = f"Write {noun} IN, which may be in any older notation, to OUT in the present one."
    made = command(f"{name} old.{ending} new.{ending}", text, name=name)
    return made(click.argument("words", nargs=-1, metavar="IN OUT")(run))


upgrade_net_proto_text = _command("upgrade_net_proto_text", "the prototxt of a net", "prototxt")
upgrade_net_proto_binary = _command("upgrade_net_proto_binary", "a model", "caffemodel")
upgrade_solver_proto_text = _command("upgrade_solver_proto_text", "the prototxt of a solver", "prototxt")


def upgrade(tool: str, source: str, target: str) -> int:
    """Upgrade a file as the program `tool`, such as upgrade_net_proto_text.

    Returns:
        Caffe's exit code: 1 if something was lost, 2 if the source is of another kind.
    """
    kind = pb.SolverParameter if "solver" in tool else pb.NetParameter
    form = tool.rpartition("_")[2]
    check_output(target, MODEL if form == "binary" else PROTOTXT)
    try:
        param = (read_binary if form == "binary" else read_text)(source, kind)
    except (ProtoError, SnapshotError) as problem:
        if not os.path.isfile(source):
            raise
        log.error(str(problem))
        log.cannot_upgrade(f"{form} file as {kind.DESCRIPTOR.name}", source, tool)
        return 2
    complete = True
    if kind is pb.SolverParameter:
        if not param.HasField("solver_type"):
            log.already_upgraded(source, tool)
        upgrade_solver(param, source)
    else:
        if net_is_current(param, source):
            log.already_upgraded(source, tool)
        complete = upgrade_net(param, source)
        if not complete:
            log.problems_while_upgrading(tool)
    (proto.write_binary if form == "binary" else proto.write_text)(target, param)
    log.wrote_upgraded(f"{kind.DESCRIPTOR.name} {form}", target, tool, 48 if form == "binary" else 49)
    return 0 if complete else 1


@command(
    example="draw_net train_val.prototxt net.svg --phase TRAIN",
    help="Draw the net IN (a prototxt) into the file OUT, whose name ends in the format: .svg, .png, .pdf, .raw "
    "(Graphviz's language), or any other format of Graphviz.",
)
@click.argument("net", metavar="IN")
@click.argument("picture", metavar="OUT")
@click.option("--rankdir", default="LR", metavar="LR|TB|RL|BT", help="Direction of the net: right, down, ... (LR).")
@click.option("--phase", default="ALL", metavar="TRAIN|TEST|ALL", help="Draw the layers of this phase only (ALL).")
@click.option("--display_lrm", is_flag=True, help="Show the lr_mult of layers that learn.")
def draw_net(net: str, picture: str, rankdir: str, phase: str, display_lrm: bool) -> int:
    if phase not in PHASES:
        raise UsageError(f'phase must be "TRAIN", "TEST" or "ALL", not "{phase}"')
    check_output(picture, PICTURE, net)
    from fcaffe.pycaffe.draw import draw_net_to_file

    param = proto.read_net(net)
    say(f"Drawing net to {picture}")
    draw_net_to_file(param, picture, rankdir, PHASES[phase], display_lrm)
    if rankdir in ("LR", "RL") and len(param.layer) > LONG:
        say(f"A net of {len(param.layer)} layers makes a wide picture; --rankdir TB draws it downwards")
    return 0


@command(
    example="merge-bn deploy.prototxt net.caffemodel merged.prototxt merged.caffemodel",
    help="Fold each BatchNorm, Scale and Bias of the net NET into the convolution or inner product before it, by the "
    "weights of the model WEIGHTS, and write what is left, in phase TEST, as NEW_NET and NEW_WEIGHTS. Without "
    "such weights, successive ones become one Scale. The outputs stay the same, to the rounding of float32.",
)
@click.argument("net", metavar="NET")
@click.argument("weights", metavar="WEIGHTS")
@click.argument("new_net", metavar="NEW_NET")
@click.argument("new_weights", metavar="NEW_WEIGHTS")
def merge_bn(net: str, weights: str, new_net: str, new_weights: str) -> int:
    check_output(new_net, PROTOTXT, net, weights, new_weights)
    check_output(new_weights, target_kind(new_weights), net, weights)
    with log.quiet():
        merged = merge(proto.read_net(net), read_model(weights))
    proto.write_text(new_net, merged.net)
    write_model(new_weights, merged.model)
    for layer, others in merged.folded.items():
        say(f"{layer} has taken in {', '.join(others)}")
    say(f"{new_net}: {sum(map(len, merged.folded.values()))} layers fewer than {net}")
    return 0
