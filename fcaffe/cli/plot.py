"""`fcaffe plot` and, as in Caffe's tools/extra, `fcaffe plot_training_log`: draw trainings from their logs."""

from __future__ import annotations

import os

import click

from fcaffe.cli.flags import command
from fcaffe.cli.usage import required
from fcaffe.errors import UsageError
from fcaffe.tools.plot import CHARTS, plot_chart
from fcaffe.tools.plot import plot as plot_logs


@command(
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
def plot(words: tuple[str, ...], out: str, x: str) -> int:
    logs = required(words, 1, 1000)
    picture = out or f"{os.path.splitext(os.path.basename(logs[0]))[0]}.png"
    plot_logs(logs, picture, by_time=x == "time")
    print(picture)
    return 0


@command(
    example="plot_training_log 6 loss.png train.log",
    help="Draw one curve of each LOG into PICTURE. CHART_TYPE is its number: "
    + "; ".join(f"{number}: {chart}" for number, chart in enumerate(CHARTS))
    + ".",
)
@click.argument("words", nargs=-1, metavar="CHART_TYPE PICTURE LOG...")
def plot_training_log(words: tuple[str, ...]) -> int:
    chart, picture, *logs = required(words, 3, 1000)
    if not chart.isdecimal() or int(chart) >= len(CHARTS):
        kinds = "; ".join(f"{number}: {name}" for number, name in enumerate(CHARTS))
        raise UsageError(f"{chart} is not a valid chart type: give one of {kinds}")
    plot_chart(int(chart), picture, logs)
    return 0
