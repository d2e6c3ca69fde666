"""`fcaffe summarize`: shows the layers in a prototxt as a table, as Caffe's tools/extra does."""

from __future__ import annotations

import sys

import click

from fcaffe import log
from fcaffe.cli.flags import common_flags
from fcaffe.cli.usage import Command, required
from fcaffe.proto import read_net
from fcaffe.tools.net_table import net_rows, table_lines


@click.command(
    "summarize",
    cls=Command,
    example="summarize train_val.prototxt",
    help="Show each layer of the net NET (a prototxt), all phases together: its type, (names and multipliers of its "
    "parameters), bottoms -> tops, kernel/stride+pad and outputs. `summary` shows shapes and costs.",
)
@click.argument("words", nargs=-1, metavar="NET")
@click.option("--max-width", "-w", default=30, metavar="N", help="Largest number of characters of a column (30).")
@common_flags
def summarize(words: tuple[str, ...], max_width: int) -> int:
    (path,) = required(words, 1)
    with log.quiet():
        net = read_net(path)
    for line in table_lines(net_rows(net, colors=sys.stdout.isatty()), max_width):
        print(line)
    return 0
