"""`fcaffe upgrade_net_proto_text` and the other upgrade programs of Caffe."""

from __future__ import annotations

from collections.abc import Callable

import click

from fcaffe.cli.flags import log_flags
from fcaffe.cli.usage import Command, required
from fcaffe.tools.upgrade import upgrade_net_binary, upgrade_net_text, upgrade_solver_text


def _command(name: str, noun: str, example: str, upgrade: Callable[[str, str], int]) -> click.Command:
    def run(words: tuple[str, ...]) -> int:
        return upgrade(*required(words, 2))

    arguments = click.argument("words", nargs=-1, metavar="IN OUT")
    return click.command(
        name,
        cls=Command,
        example=f"{name} {example}",
        help=f"Write {noun} IN, which may be in any older notation, to OUT in the present one.",
    )(arguments(log_flags(run)))


upgrade_net_proto_text = _command(
    "upgrade_net_proto_text", "the prototxt of a net", "old.prototxt new.prototxt", upgrade_net_text
)
upgrade_net_proto_binary = _command(
    "upgrade_net_proto_binary", "a model", "old.caffemodel new.caffemodel", upgrade_net_binary
)
upgrade_solver_proto_text = _command(
    "upgrade_solver_proto_text", "the prototxt of a solver", "old.prototxt new.prototxt", upgrade_solver_text
)
