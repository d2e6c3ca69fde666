"""Commands that read the log of a training.

`parse_log`, `extract_seconds` and `plot_training_log` do what the programs of these names in Caffe's tools/extra do.
`plot` draws an overview, and `report` writes a page.
"""

from __future__ import annotations

import csv
import itertools
import math
import os
import re
from collections.abc import Iterable

import click

from fcaffe.cli.flags import command, required
from fcaffe.cli.table import say
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.log.reader import OUTPUT, RATE, Message, is_start, lines_of, messages
from fcaffe.output_files import PICTURE, check_output, replacing, starting
from fcaffe.tools.plot import CHARTS, plot_chart
from fcaffe.tools.plot import plot as plot_logs
from fcaffe.tools.report import PAGE

TABLE = starting("table of parse_log", b"NumIters")
SECONDS = starting("list of seconds", rb"-?\d+\.\d{6}\n")


@command(
    example="parse_log train.log .",
    help="Write the outputs in LOG, of a training, to the CSV files LOG.train and LOG.test in OUTPUT_DIR. Columns are "
    "iteration, seconds, learning rate and each output.",
)
@click.argument("words", nargs=-1, metavar="LOG OUTPUT_DIR")
@click.option("--delimiter", default=",", metavar="C", help="Delimiter of the columns (,).")
@click.option("--verbose", is_flag=True, help="Print the names of the written files.")
def parse_log(words: tuple[str, ...], delimiter: str, verbose: bool) -> int:
    path, folder = required(words, 2)
    if len(delimiter) != 1:
        raise UsageError(f"--delimiter takes one character, not '{delimiter}'")
    targets = {phase: os.path.join(folder, f"{os.path.basename(path)}.{phase.lower()}") for phase in ("Train", "Test")}
    for target in targets.values():
        check_output(target, TABLE)
    for phase, rows in tables(read_messages(path)).items():
        target = targets[phase]
        if rows:
            columns = dict.fromkeys(column for row in rows for column in row)
            with replacing(target, "table") as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, fieldnames=list(columns), delimiter=delimiter)
                writer.writeheader()
                writer.writerows(rows)
        if verbose:
            say(f"Wrote {target}" if rows else f"Not writing {target}; no lines to write")
    return 0


@command(
    example="extract_seconds train.log seconds.txt",
    help="Write the time of each line of LOG that names an iteration, in seconds since the training began.",
)
@click.argument("words", nargs=-1, metavar="LOG OUTPUT_FILE")
def extract_seconds(words: tuple[str, ...]) -> int:
    path, target = required(words, 2)
    check_output(target, SECONDS, path)
    seconds = [seconds for seconds, text in read_messages(path) if "Iteration" in text]
    with replacing(target, "list of seconds") as temporary:
        temporary.write_text("".join(f"{second:f}\n" for second in seconds))
    return 0


@command(
    example="plot --out runs.png sgd.log adam.log",
    help="Draw the losses, test scores and learning rate in each LOG, fcaffe's or Caffe's. Several runs share one "
    "picture, each in its own color.",
)
@click.argument("words", nargs=-1, metavar="LOG...")
@click.option("--out", default="", metavar="FILE", help="The picture: .png, .pdf or .svg (the first LOG's name, .png).")
def plot(words: tuple[str, ...], out: str) -> int:
    logs = required(words, 1, 1000)
    picture = out or f"{os.path.splitext(os.path.basename(logs[0]))[0]}.png"
    check_output(picture, PICTURE, *logs)
    plot_logs(logs, picture)
    say(picture)
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
    check_output(picture, PICTURE, *logs)
    plot_chart(int(chart), picture, logs)
    return 0


@command(
    example="report train.log page.html --solver solver.prototxt",
    help="Write the page PAGE.html about a training from its LOG, fcaffe's or Caffe's, with its curves. A training "
    "that was resumed may have several logs, in their order. --solver adds the prototxts. `train --report` writes such "
    "a page while it trains, with the mistakes of the first test net.",
)
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.argument("page", metavar="PAGE.html")
@click.option("--solver", default="", metavar="FILE", help="The solver's prototxt.")
def report(logs: tuple[str, ...], page: str, solver: str) -> int:
    from fcaffe.tools.report.recorder import write_report

    check_output(page, PAGE, *logs, solver)
    write_report(logs, page, solver)
    return 0


Row = dict[str, float]  # column -> value

_ITERATION = re.compile(r"Iteration (\d+)")


def read_messages(path: str) -> list[Message]:
    """The messages of the log at `path`, starting at `Solving ...`. Raises FcaffeError if there is no such line."""
    found = list(itertools.dropwhile(lambda message: not is_start(message.text), messages(lines_of(path))))
    if not found:
        raise FcaffeError(f'{path} is not the log of a training: it has no line "Solving ..."')
    return found


def tables(log: Iterable[Message]) -> dict[str, list[Row]]:
    """The rows of Train and of Test. Columns are iteration, seconds, rate, and each output by its name.

    As in Caffe, a row is full when it has as many columns as the first row. Further outputs of the same iteration, such
    as those of a second test net, start another row. Of several outputs of one name, the last one counts. The first row
    takes its rate from the second, since Caffe logs it after the first outputs.
    """
    parts: dict[str, list[Row]] = {"Train": [], "Test": []}
    iteration, rate = -1.0, math.nan
    for seconds, text in log:
        if match := _ITERATION.search(text):
            iteration = float(match[1])
        if match := RATE.search(text):
            rate = float(match[2])
        if iteration >= 0 and (match := OUTPUT.search(text)):
            phase, _, name, value, _ = match.groups()
            rows = parts[phase]
            if not rows or rows[-1]["NumIters"] != iteration or _last_is_full(rows):
                rows.append({"NumIters": iteration, "Seconds": seconds, "LearningRate": rate})
            rows[-1][name] = float(value)
    for rows in parts.values():
        if len(rows) > 1 and not _last_is_full(rows):
            rows.pop()
        if len(rows) > 1:
            rows[0]["LearningRate"] = rows[1]["LearningRate"]
    return parts


def _last_is_full(rows: list[Row]) -> bool:
    """Whether the last row, which is not the first, has as many columns as the first."""
    return len(rows) > 1 and len(rows[-1]) == len(rows[0])
