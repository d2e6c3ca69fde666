"""`fcaffe plot`: draws one or several trainings from their logs."""

from __future__ import annotations

import os

import click

from fcaffe.cli.flags import common_flags
from fcaffe.cli.usage import Command, required
from fcaffe.tools.plot import plot as plot_logs


@click.command(
    "plot",
    cls=Command,
    example="plot --out runs.png sgd.log adam.log",
    help="Draw the losses, test scores and learning rate in each LOG, fcaffe's or Caffe's. Several runs share one "
    "picture, each in its own color.",
)
@click.argument("words", nargs=-1, metavar="LOG...")
@click.option("--out", default="", metavar="FILE", help="The picture: .png, .pdf or .svg (the first LOG's name, .png).")
@click.option(
    "--x",
    type=click.Choice(["iteration", "time"]),
    default="iteration",
    help="Horizontal axis (iteration).",
)
@common_flags
def plot(words: tuple[str, ...], out: str, x: str) -> int:
    logs = required(words, 1, 1000)
    picture = out or f"{os.path.splitext(os.path.basename(logs[0]))[0]}.png"
    plot_logs(logs, picture, by_time=x == "time")
    print(picture)
    return 0
