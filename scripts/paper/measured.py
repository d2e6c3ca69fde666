#!/usr/bin/env python3
"""Seconds of training iterations that `fcaffe plan` predicts, beside those that `fcaffe bench step` measures.

  sudo .venv/bin/python scripts/paper/measured.py       # all cells, in eight minutes at most
  scripts/paper/measured.py --where here                # 1, 2 and 4 workers of this machine; needs no root
  sudo .venv/bin/python scripts/paper/measured.py --where 1gbit,10gbit  # hosts of scripts/emulated_cluster
  scripts/paper/measured.py --where here --nets lenet --json out.json

Workers of one host are predicted from one and two ranks. Between hosts of the cluster, which have one core each and
share those of this machine, a net is measured by two of them, and where messages make much of an iteration by eight,
over the fastest links only; each kind of link is measured by two. All cells are predicted from that, whatever the
number of workers or hosts and the reduction. Both sides are medians: a training gets the mean of an iteration's fast
and slow modes, not the shortest. A measurement during which other programs took cores is marked, and repeated while
there is much time (quiet_run.py). First come the workers of this machine, then the cluster from the fastest links on;
what there is no time for is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from emulated import hosts

from fcaffe.log import quiet
from fcaffe.plan.machine_file import read_machine
from fcaffe.plan.prediction import Prediction
from fcaffe.plan.question import Question
from fcaffe.plan.work import Work, work_of_net

ROOT = Path(__file__).resolve().parents[2]
QUIET = Path(__file__).parent / "quiet_run.py"
NETS = {"lenet": (64, "1,28,28"), "nin_cifar10": (64, "3,32,32"), "alexnet": (8, "3,227,227")}
# On the cluster: batch, iterations of a turn, which are enough that the last one's sums, behind which no forward pass
# comes, make little of it, and by how many hosts the net is measured.
BETWEEN = {"lenet": (64, 8, (2, 8)), "nin_cifar10": (32, 4, (2,))}
ROUNDS = {"lenet": 5, "nin_cifar10": 3, "alexnet": 3}
ENDING = 5  # seconds to take hosts down, and to print the table
LAST = 35  # seconds that a cell may take,
CALIBRATING = {"lenet": 90, "nin_cifar10": 80, "alexnet": 110}  # and all calibrations of a net at one place
REPEATING = 400  # seconds that must be left for a measurement to be repeated
WORKERS, HOSTS = (1, 2, 4), (2, 4, 8)
REDUCTIONS = ("server", "tree", "ring")
DISTURBED = 75  # what quiet_run.py exits with
BOUND = 0.15  # of the measurement, that a prediction may be away

Cell = dict[str, Any]


class Measurement:
    """Runs the commands."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.deadline = time.monotonic() + seconds
        self.disturbed = False  # the last one
        self.left_out = False

    def has_time(self, seconds: float = LAST) -> bool:
        """Whether so many are left; if not, something is left out."""
        enough = time.monotonic() + seconds < self.deadline
        self.left_out |= not enough
        return enough

    def run(self, *command: str) -> str:
        """The standard output. Raises CalledProcessError, and TimeoutExpired if it is not through in time."""
        spare = self.deadline - time.monotonic() > REPEATING
        quiet = [sys.executable, str(QUIET)] + ["--once"] * (not spare)
        words = [*quiet, *command]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=max(1.0, self.deadline - time.monotonic()))
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)  # an mpiexec among them ends its ranks
            process.wait()
            raise
        self.disturbed = process.returncode == DISTURBED
        if process.returncode and not self.disturbed:
            raise subprocess.CalledProcessError(process.returncode, words)
        return output


def fcaffe(*words: str) -> list[str]:
    return [sys.executable, "-m", "fcaffe", *words]


def net_flags(net: str) -> list[str]:
    return ["--net", str(ROOT / "models" / net / "train_val.prototxt"), "--input-shape", NETS[net][1]]


def calibration(net: str, largest: int, file: Path) -> list[str]:
    """Of a net at a rank's shares from the largest down to a quarter of it."""
    words = ["--batch", str(largest), "--workers", "1,2", "--out", str(file)]
    return fcaffe("plan", "--calibrate", *net_flags(net), *words)


@cache
def work(net: str) -> Work:
    path, *shape = net_flags(net)[1::2]
    with quiet():
        return work_of_net(path, [int(word) for word in shape[0].split(",")])


def predicted(net: str, batch: int, workers: int, reduce: str, file: Path) -> float:
    """Milliseconds an iteration, as `fcaffe plan` says."""
    return 1000 * Prediction(Question(work(net), read_machine(str(file)), batch)).row(workers, reduce).seconds


def step(net: str, batch: int, reductions: Sequence[str], iterations: int = 0) -> list[str]:
    flags = ["--reduce", ",".join(reductions), "--rounds", str(ROUNDS[net]), "--iterations", str(iterations), "--json"]
    return fcaffe("bench", "step", *net_flags(net), "--batch-size", str(batch), *flags)


def here(measurement: Measurement, net: str) -> Iterator[Cell]:
    """Workers of this machine, which split the batch."""
    batch, file = NETS[net][0], measurement.folder / f"here-{net}.json"
    mpiexec = str(Path(sys.executable).parent / "mpiexec")
    if not measurement.has_time(CALIBRATING[net]):
        return
    measurement.run(*calibration(net, batch, file))
    measurement.run(mpiexec, "-n", "2", *calibration(net, batch // 2, file))
    for workers in WORKERS:
        if not measurement.has_time():
            return
        (result,) = json.loads(measurement.run(*step(net, batch, ["auto"]), "--workers", str(workers)))["results"]
        cell = {"where": "one host", "net": net, "batch": batch, "workers": workers, "reduce": "auto"}
        yield {**cell, "measured": result, "disturbed": measurement.disturbed, "file": file}


def cluster(measurement: Measurement, net: str, rate: str) -> Iterator[Cell]:
    """Hosts with one worker each."""
    batch, iterations, numbers = BETWEEN[net]
    file = measurement.folder / f"{rate}-{net}.json"
    if not measurement.has_time(LAST if hosts_file(measurement, net, numbers[-1]).exists() else CALIBRATING[net]):
        return
    file.write_text(json.dumps(links(measurement, rate) | {"measured": measured_by_hosts(measurement, net, rate)}))
    for number in HOSTS:
        if not measurement.has_time():
            return
        with hosts(number, rate) as run:
            found = json.loads(measurement.run(*run, *step(net, batch, REDUCTIONS, iterations)))["results"]
        for reduce, result in zip(REDUCTIONS, found, strict=True):
            cell = {"where": rate, "net": net, "batch": batch, "workers": number, "reduce": reduce}
            yield {**cell, "measured": result, "disturbed": measurement.disturbed, "file": file}


def hosts_file(measurement: Measurement, net: str, number: int) -> Path:
    """What so many hosts have measured of a net."""
    return measurement.folder / f"{net}-{number}.json"


def measured_by_hosts(measurement: Measurement, net: str, rate: str) -> list[Any]:
    """What each number of hosts that measures the net says of it, over the links of the first rate that asks."""
    batch, _, numbers = BETWEEN[net]
    made = []
    for number in numbers:
        file = hosts_file(measurement, net, number)
        if not file.exists():
            with hosts(number, rate) as run:
                measurement.run(*run, *calibration(net, min(batch // 2, 2 * batch // number), file))
        made += [{**one, "ranks": number} for one in json.loads(file.read_text())["measured"]]
    return made


def links(measurement: Measurement, rate: str) -> dict[str, Any]:
    """The machine's file for hosts with such links, as two hosts measure them."""
    file = measurement.folder / f"{rate}.json"
    if not file.exists():
        with hosts(HOSTS[0], rate) as run:
            measurement.run(*run, *fcaffe("plan", "--calibrate", "--out", str(file)))
    shared = {"devices_per_node": 1, "nodes_share_cores": True, "cores": len(os.sched_getaffinity(0))}
    return dict(json.loads(file.read_text())) | shared


def places(where: Sequence[str], nets: Sequence[str]) -> list[tuple[str, str]]:
    """Where each net is measured, in this order: the place comes before the net, so that none is missed for another."""
    return [(place, net) for place in where for net in nets if place == "here" or net in BETWEEN]


def all_cells(measurement: Measurement, order: Sequence[tuple[str, str]]) -> Iterator[Cell]:
    for where, net in order:
        yield from here(measurement, net) if where == "here" else cluster(measurement, net, where)


def compared(cell: Cell) -> Cell:
    """The cell with its prediction."""
    file = cell.pop("file")
    ms = predicted(cell["net"], cell["batch"], cell["workers"], cell["reduce"], file)
    return {**cell, "predicted_ms": ms, "ratio": ms / cell["measured"]["ms"]}


def table(cells: Sequence[Cell]) -> str:
    head = ("where", "net", "batch", "workers", "reduce", "predicted, ms", "measured, ms", "predicted / measured", "")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cell in cells:
        numbers = f"{cell['predicted_ms']:.1f}", f"{cell['measured']['ms']:.1f}", f"{cell['ratio']:.2f}"
        notes = ["missed"] * (abs(cell["ratio"] - 1) > BOUND) + ["disturbed"] * cell["disturbed"]
        words = [str(cell[key]) for key in ("where", "net", "batch", "workers", "reduce")]
        lines.append(f"| {' | '.join([*words, *numbers, ', '.join(notes)])} |")
    within = sum(abs(cell["ratio"] - 1) <= BOUND for cell in cells)
    return "\n".join([*lines, "", f"{within} of {len(cells)} cells within {BOUND:.0%} of the measurement"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", default="here,10gbit,1gbit", help="here, and rates of the emulated cluster's links")
    parser.add_argument("--minutes", type=float, default=8.0, help="that all of it may take (default: 8)")
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--json", default="", help="write the cells to this file, too")
    parser.add_argument("--keep", type=Path, help="a folder for the machines' files")
    words = parser.parse_args()
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory() as temporary:
        if words.keep:
            words.keep.mkdir(parents=True, exist_ok=True)
        measurement = Measurement((words.keep or Path(temporary)).resolve(), 60 * words.minutes - ENDING)
        try:
            for cell in all_cells(measurement, places(words.where.split(","), words.nets.split(","))):
                cells.append(compared(cell))
                print(table(cells[-1:]).splitlines()[2], file=sys.stderr, flush=True)
                if words.json:
                    Path(words.json).write_text(json.dumps(cells, indent=1))
        except subprocess.TimeoutExpired:
            measurement.left_out = True
        if measurement.left_out:
            print(f"{words.minutes:g} minutes are too short for what is not in the table; it has not been measured.")
    print(table(cells))


if __name__ == "__main__":
    main()
