"""`fcaffe upgrade_net_proto_text` and the other upgrade programs of Caffe."""

from __future__ import annotations

import click

from fcaffe.cli.flags import log_flags
from fcaffe.cli.usage import Command, required
from fcaffe.tools.upgrade import upgrade


def _command(name: str, noun: str, ending: str) -> click.Command:
    def run(words: tuple[str, ...]) -> int:
        return upgrade(name, *required(words, 2))

    return click.command(
        name,
        cls=Command,
        example=f"{name} old.{ending} new.{ending}",
        help=f"Write {noun} IN, which may be in any older notation, to OUT in the present one.",
    )(click.argument("words", nargs=-1, metavar="IN OUT")(log_flags(run)))


upgrade_net_proto_text = _command("upgrade_net_proto_text", "the prototxt of a net", "prototxt")
upgrade_net_proto_binary = _command("upgrade_net_proto_binary", "a model", "caffemodel")
upgrade_solver_proto_text = _command("upgrade_solver_proto_text", "the prototxt of a solver", "prototxt")
