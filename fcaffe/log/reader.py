"""Reader for the log of a training, fcaffe's or Caffe's: parses the sentences that `solver.py` writes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from fcaffe.errors import FcaffeError

Curve = dict[int, float]  # iteration -> value

_PREFIX = re.compile(r"[IWEF](\d{4}|)(\d{4}) (\d\d:\d\d:\d\d\.\d{1,6})\d* +\d+ \S+:\d+\] (.*)")
_NUMBER = r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))"
_SOLVING = re.compile(r"Solving (.*)")
_TESTING = re.compile(r"Iteration (\d+), Testing net \(#(\d+)\)")
_TEST_LOSS = re.compile(rf"Test loss: {_NUMBER}")
_LOSS = re.compile(rf"Iteration (\d+)(?: \(.*\))?, loss = {_NUMBER}")
RATE = re.compile(rf"Iteration (\d+), lr = {_NUMBER}")
OUTPUT = re.compile(rf"(Train|Test) net output #(\d+): (.*) = {_NUMBER}( \(\* \S+ = \S+ loss\))?$")


class Message(NamedTuple):
    """A line of a log without its prefix. `seconds` count from the first line, after `Solving ...` from that line."""

    seconds: float
    text: str


@dataclass
class Output:
    """One output value of a net: the name of its blob, its index among all values, and whether it is a loss."""

    name: str
    index: int
    is_loss: bool
    curve: Curve = field(default_factory=dict)


@dataclass
class NetCurves:
    """The curves of one test net."""

    loss: Curve = field(default_factory=dict)
    outputs: dict[int, Output] = field(default_factory=dict)
    seconds: Curve = field(default_factory=dict)  # iteration -> seconds since the training began


@dataclass
class TrainingLog:
    """All curves of a training. If a resumed run repeated iterations, the later values count."""

    net: str = ""
    loss: Curve = field(default_factory=dict)  # as logged: smoothed over average_loss iterations
    rate: Curve = field(default_factory=dict)
    seconds: Curve = field(default_factory=dict)  # iteration -> seconds since the training began
    test_nets: dict[int, NetCurves] = field(default_factory=dict)

    def curves(self) -> list[Curve]:
        curves = [self.loss, self.rate, self.seconds]
        for net in self.test_nets.values():
            curves += [net.loss, net.seconds, *(output.curve for output in net.outputs.values())]
        return curves


def lines_of(path: str | os.PathLike[str]) -> list[str]:
    """The lines of the log at `path`. Raises FcaffeError."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readlines()
    except OSError as problem:
        raise FcaffeError(f"cannot read {path}: {problem.strerror}") from problem


def messages(lines: Iterable[str]) -> Iterator[Message]:
    """The messages in these lines. Lines without a prefix are skipped.

    Before version 0.6 glog wrote no year. A month lower than the one before then starts a new year.
    """
    start: datetime | None = None
    year, month, solving = 2024, "", False
    for line in lines:
        prefixed = _PREFIX.match(line)
        if prefixed is None:
            continue
        given, date, clock, text = prefixed.groups()
        year += date[:2] < month
        month = date[:2]
        try:
            moment = datetime.strptime(f"{given or year}{date} {clock}", "%Y%m%d %H:%M:%S.%f")
        except ValueError:  # not a date of that year
            continue
        begins = not solving and is_start(text)
        if start is None or begins:
            start, solving = moment, begins
        yield Message((moment - start).total_seconds(), text)


def is_start(text: str) -> bool:
    """Whether this message is the first one of a training."""
    return _SOLVING.fullmatch(text) is not None


def read_log(*paths: str | os.PathLike[str]) -> TrainingLog:
    """The curves in the logs of a training, which may have been resumed. Raises FcaffeError for one that is no log."""
    lines: list[str] = []
    for path in paths:
        own = lines_of(path)
        if not any(parse_log(own).curves()):
            raise FcaffeError(
                f"{path} has no line of a training, such as 'Iteration 0, lr = 0.01'; give the log of a training"
            )
        lines += own
    return parse_log(lines)


def parse_log(lines: Iterable[str]) -> TrainingLog:
    """The curves in these lines. Lines that are not in Caffe's grammar are skipped."""
    log = TrainingLog()
    iteration, testing, begins = 0, NetCurves(), False
    for seconds, message in messages(lines):
        if match := _SOLVING.fullmatch(message):
            log.net, begins = match[1], True
        elif message.startswith("Iteration "):
            match = _LOSS.fullmatch(message) or RATE.fullmatch(message) or _TESTING.fullmatch(message)
            if match is None:
                continue
            iteration = int(match[1])
            if begins:  # a run may resume before the last iteration of the run above it
                for curve in log.curves():
                    for later in [index for index in curve if index >= iteration]:
                        del curve[later]
                begins = False
            if match.re is _TESTING:
                testing = log.test_nets.setdefault(int(match[2]), NetCurves())
            else:
                (log.loss if match.re is _LOSS else log.rate)[iteration] = float(match[2])
                log.seconds[iteration] = seconds
        elif match := _TEST_LOSS.fullmatch(message):
            testing.loss[iteration] = float(match[1])
            testing.seconds[iteration] = seconds
        elif (match := OUTPUT.fullmatch(message.strip())) and match[1] == "Test":
            _, index, name, value, loss = match.groups()
            output = testing.outputs.setdefault(int(index), Output(name, int(index), loss is not None))
            output.curve[iteration] = float(value)
            testing.seconds[iteration] = seconds
    return log
