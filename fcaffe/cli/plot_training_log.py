"""`fcaffe plot_training_log`: draws one curve of several trainings, as Caffe's tools/extra does."""

from __future__ import annotations

import click

from fcaffe.cli.flags import common_flags
from fcaffe.cli.usage import Command, required
from fcaffe.errors import UsageError
from fcaffe.tools.plot import CHARTS, plot_chart


@click.command(
    "plot_training_log",
    cls=Command,
    example="plot_training_log 6 loss.png train.log",
    help="Draw one curve of each LOG into PICTURE. CHART_TYPE is its number: "
    + "; ".join(f"{number}: {chart}" for number, chart in enumerate(CHARTS))
    + ".",
)
@click.argument("words", nargs=-1, metavar="CHART_TYPE PICTURE LOG...")
@common_flags
def plot_training_log(words: tuple[str, ...]) -> int:
    chart, picture, *logs = required(words, 3, 1000)
    if not chart.isdecimal() or int(chart) >= len(CHARTS):
        kinds = "; ".join(f"{number}: {name}" for number, name in enumerate(CHARTS))
        raise UsageError(f"{chart} is not a valid chart type: give one of {kinds}")
    plot_chart(int(chart), picture, logs)
    return 0
