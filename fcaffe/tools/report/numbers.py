"""The curves of a training in bounded memory, and in a small file that a killed process leaves whole.

A line of the file is a key, an iteration and a value: `loss 35 0.25`. A curve of more than MOST points is thinned: each
of its points then stands for twice as many iterations as before. So a page costs the same at any iteration.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fcaffe import log
from fcaffe.errors import FcaffeError
from fcaffe.log.reader import Curve, NetCurves, Output, TrainingLog
from fcaffe.output_files import replacing

MOST = 2400  # points of a curve
HEAD = "fcaffe's numbers of run"
LOSS, RATE, TEST = "loss", "rate", "test"


class Thinned:
    """A curve of at most MOST points, each the mean of `stride` values at the iteration of the last one."""

    def __init__(self) -> None:
        self.points: Curve = {}
        self.stride = 1
        self._sum, self._count, self._last = 0.0, 0, 0

    def add(self, iteration: int, value: float) -> bool:
        """Add a value. Returns whether a point is complete."""
        self._sum, self._count, self._last = self._sum + value, self._count + 1, iteration
        if self._count < self.stride:
            return False
        self.points[iteration] = self._sum / self._count
        self._sum, self._count = 0.0, 0
        return True

    def halve(self) -> None:
        """Join each two points that follow each other."""
        points = list(self.points.items())
        joined = zip(points[::2], points[1::2], strict=False)
        self.points = {later: (first + second) / 2 for (_, first), (later, second) in joined}
        self.stride *= 2

    def curve(self) -> Curve:
        """All points, with one for the values that do not fill one yet."""
        return {**self.points, self._last: self._sum / self._count} if self._count else dict(self.points)


class Numbers:
    """The losses, rates and test outputs of a run, in memory and in the file `path`.

    A run that resumes at an iteration takes over the numbers up to that from the file, if its number is that of `run`.
    """

    def __init__(self, path: str, run: int, iteration: int) -> None:
        self.path, self.run = path, run
        self._file: BinaryIO | None = None
        self._curves: dict[str, Thinned] = {}
        for key, number, value in self._read(iteration):
            curve = self._curves.setdefault(key, Thinned())
            if number < 0:
                curve.stride = int(value)
            else:
                curve.points[number] = value
        self._write_all()

    def _read(self, iteration: int) -> Iterator[tuple[str, int, float]]:
        with contextlib.suppress(OSError, ValueError), open(self.path, encoding="utf-8") as file:
            if file.readline() != f"{HEAD} {self.run}\n" or not iteration:
                return
            for line in file:
                key, number, value = line.rsplit(" ", 2)
                if line.endswith("\n") and int(number) <= iteration:
                    yield key, int(number), float(value)

    def add(self, key: str, iteration: int, value: float) -> None:
        """Add a value of the curve `key`."""
        curve = self._curves.setdefault(key, Thinned())
        if not curve.add(iteration, value):
            return
        if len(curve.points) > MOST:
            curve.halve()
            self._write_all()
        elif self._file is not None:
            with contextlib.suppress(OSError):  # a full disk must not end a training
                self._file.write(f"{key} {iteration} {curve.points[iteration]!r}\n".encode())

    def _write_all(self) -> None:
        """Write the file anew. A page without it goes on, with a warning."""
        self.close()
        try:
            with replacing(self.path, "numbers of the report") as temporary:
                lines = [f"{HEAD} {self.run}\n"]
                for key, curve in self._curves.items():
                    lines.append(f"{key} -1 {curve.stride}\n")
                    lines += [f"{key} {number} {value!r}\n" for number, value in curve.points.items()]
                Path(temporary).write_text("".join(lines), encoding="utf-8")
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - until the end of the run
        except (FcaffeError, OSError) as problem:
            log.warning(f"{problem}; after a restart the page lacks the curves up to then")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def log(self, net: str) -> TrainingLog:
        """The curves, as from a log."""
        found = TrainingLog(net=net)
        for key, thinned in self._curves.items():
            if key == LOSS:
                found.loss = thinned.curve()
            elif key == RATE:
                found.rate = thinned.curve()
            else:
                index, number, is_loss, name = key.split(":", 4)[1:]
                output = Output(name, int(number), is_loss == "1", thinned.curve())
                found.test_nets.setdefault(int(index), NetCurves()).outputs[int(number)] = output
        return found


def key_of(index: int, number: int, is_loss: bool, name: str) -> str:
    """The key of an output of test net `index`."""
    return f"{TEST}:{index}:{number}:{int(is_loss)}:{name}"


def beside(page: str | os.PathLike[str]) -> str:
    """The path of the numbers of a page."""
    return f"{os.fspath(page)}.numbers"
