"""`fcaffe upgrade_net_proto_text` and the other upgrade programs of Caffe."""

from __future__ import annotations

import os

import click

from fcaffe import log
from fcaffe.cli.flags import command, log_flags
from fcaffe.cli.usage import required
from fcaffe.errors import ProtoError, SnapshotError
from fcaffe.output_files import check_output
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import write_binary, write_text
from fcaffe.proto.binary import MODEL, read_binary
from fcaffe.proto.text import PROTOTXT, read_text
from fcaffe.proto.upgrade import net_is_current, upgrade_net, upgrade_solver


def _command(name: str, noun: str, ending: str) -> click.Command:
    def run(words: tuple[str, ...]) -> int:
        return upgrade(name, *required(words, 2))

    text = f"Write {noun} IN, which may be in any older notation, to OUT in the present one."
    made = command(f"{name} old.{ending} new.{ending}", text, flags=log_flags, name=name)
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
        if net_is_current(param):
            log.already_upgraded(source, tool)
        complete = upgrade_net(param, source)
        if not complete:
            log.problems_while_upgrading(tool)
    (write_binary if form == "binary" else write_text)(target, param)
    log.wrote_upgraded(tool, f"{kind.DESCRIPTOR.name} {form}", target)
    return 0 if complete else 1
