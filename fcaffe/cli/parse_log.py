"""`fcaffe parse_log` and `fcaffe extract_seconds`: write tables of logs, as Caffe's tools/extra does."""

from __future__ import annotations

import csv
import itertools
import math
import os
import re
from collections.abc import Iterable

import click

from fcaffe.cli.flags import command
from fcaffe.cli.usage import required
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.log.reader import OUTPUT, RATE, Message, is_start, lines_of, messages
from fcaffe.output_files import replacing


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
    paths = table_paths(path, folder)
    for phase, rows in tables(read_messages(path)).items():
        if rows:
            write_table(paths[phase], rows, delimiter)
        if verbose:
            print(f"Wrote {paths[phase]}" if rows else f"Not writing {paths[phase]}; no lines to write")
    return 0


@command(
    example="extract_seconds train.log seconds.txt",
    help="Write the time of each line of LOG that names an iteration, in seconds since the training began.",
)
@click.argument("words", nargs=-1, metavar="LOG OUTPUT_FILE")
def extract_seconds(words: tuple[str, ...]) -> int:
    path, target = required(words, 2)
    seconds = iteration_seconds(read_messages(path))
    with replacing(target, "list of seconds") as temporary:
        temporary.write_text("".join(f"{second:f}\n" for second in seconds))
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
    as those of a second test net, start another row. Of several outputs of one name, the last one counts.
    """
    parts = {"Train": _Rows(), "Test": _Rows()}
    iteration, rate = -1.0, math.nan
    for seconds, text in log:
        if match := _ITERATION.search(text):
            iteration = float(match[1])
        if match := RATE.search(text):
            rate = float(match[2])
        if iteration >= 0 and (match := OUTPUT.search(text)):
            phase, _, name, value, _ = match.groups()
            parts[phase].add(iteration, seconds, rate, name, float(value))
    return {phase: rows.finished() for phase, rows in parts.items()}


class _Rows:
    """The full rows of one phase, and the row to which outputs are added."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._open: Row = {}

    def add(self, iteration: float, seconds: float, rate: float, name: str, value: float) -> None:
        if self._open.get("NumIters") != iteration:
            self._close()
            self._open = {"NumIters": iteration, "Seconds": seconds, "LearningRate": rate}
        self._open[name] = value
        if self._rows and len(self._open) == len(self._rows[0]):
            self._close()

    def finished(self) -> list[Row]:
        """All full rows. The first row takes its rate from the second, since Caffe logs it after the first outputs."""
        if not self._rows:
            self._close()
        if len(self._rows) > 1:
            self._rows[0]["LearningRate"] = self._rows[1]["LearningRate"]
        return self._rows

    def _close(self) -> None:
        if self._open:
            self._rows.append(self._open)
            self._open = {}


def write_table(path: str, rows: list[Row], delimiter: str) -> None:
    """Write the rows as CSV, with a header line."""
    columns = dict.fromkeys(column for row in rows for column in row)
    with replacing(path, "table") as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(columns), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def table_paths(log: str, folder: str) -> dict[str, str]:
    """The files for Train and Test in `folder`, named after the log."""
    name = os.path.basename(log)
    return {phase: os.path.join(folder, f"{name}.{phase.lower()}") for phase in ("Train", "Test")}


def iteration_seconds(log: Iterable[Message]) -> list[float]:
    """The time of each line that names an iteration, in seconds since the training began."""
    return [seconds for seconds, text in log if "Iteration" in text]
