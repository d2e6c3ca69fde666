#!/usr/bin/env python3
"""Seconds of training iterations that `fcaffe plan` predicts for workers of this machine, beside the
seconds that `fcaffe bench step` measures.

  scripts/paper/measured.py --nets lenet --json out.json

The prediction knows the speed of one worker that has all cores, the links between two, and how cores are shared. Both
sides are medians: a training gets the mean of an iteration's fast and slow modes, not the shortest. Run it on a machine
that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fcaffe.log import quiet
from fcaffe.plan.machine import read_machine
from fcaffe.plan.prediction import Prediction
from fcaffe.plan.work import Work, work_of_net

ROOT = Path(__file__).resolve().parents[2]
NETS = {"lenet": (64, "1,28,28"), "nin_cifar10": (64, "3,32,32"), "alexnet": (8, "3,227,227")}
ROUNDS = {"lenet": 5, "nin_cifar10": 3, "alexnet": 3}
WORKERS = (1, 2, 4)
BOUND = 0.15  # of the measurement, that a prediction may be away

Cell = dict[str, Any]


def fcaffe(*words: str) -> str:
    """The standard output of a command. Raises CalledProcessError."""
    command = [sys.executable, "-m", "fcaffe", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def net_flags(net: str) -> list[str]:
    return ["--net", str(ROOT / "models" / net / "train_val.prototxt"), "--input-shape", NETS[net][1]]


@cache
def work(net: str) -> Work:
    path, *shape = net_flags(net)[1::2]
    with quiet():
        return work_of_net(path, [int(word) for word in shape[0].split(",")])


def predicted(net: str, batch: int, workers: int, reduce: str, file: Path) -> float:
    """Milliseconds an iteration, as `fcaffe plan` says."""
    return 1000 * Prediction(work(net), read_machine(str(file)), batch).row(workers, reduce).seconds


def cells(net: str, folder: Path) -> Iterator[Cell]:
    """Workers that split the batch."""
    batch, file = NETS[net][0], folder / f"{net}.json"
    fcaffe("plan", "--calibrate", *net_flags(net), "--batch", str(batch), "--out", str(file))
    for workers in WORKERS:
        flags = ["--batch-size", str(batch), "--rounds", str(ROUNDS[net]), "--workers", str(workers), "--json"]
        (result,) = json.loads(fcaffe("bench", "step", *net_flags(net), *flags))["results"]
        yield {"net": net, "batch": batch, "workers": workers, "reduce": "auto", "measured": result, "file": file}


def compared(cell: Cell) -> Cell:
    """The cell with its prediction."""
    file = cell.pop("file")
    ms = predicted(cell["net"], cell["batch"], cell["workers"], cell["reduce"], file)
    return {**cell, "predicted_ms": ms, "ratio": ms / cell["measured"]["ms"]}


def table(cells: Sequence[Cell]) -> str:
    head = ("net", "batch", "workers", "predicted, ms", "measured, ms", "predicted / measured", "")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cell in cells:
        numbers = f"{cell['predicted_ms']:.1f}", f"{cell['measured']['ms']:.1f}", f"{cell['ratio']:.2f}"
        note = "missed" if abs(cell["ratio"] - 1) > BOUND else ""
        words = [str(cell[key]) for key in ("net", "batch", "workers")]
        lines.append(f"| {' | '.join([*words, *numbers, note])} |")
    within = sum(abs(cell["ratio"] - 1) <= BOUND for cell in cells)
    return "\n".join([*lines, "", f"{within} of {len(cells)} cells within {BOUND:.0%} of the measurement"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--json", default="", help="write the cells to this file, too")
    words = parser.parse_args()
    found: list[Cell] = []
    with tempfile.TemporaryDirectory() as folder:
        for net in words.nets.split(","):
            for cell in cells(net, Path(folder)):
                found.append(compared(cell))
                print(table(found[-1:]).splitlines()[2], file=sys.stderr, flush=True)
                if words.json:
                    Path(words.json).write_text(json.dumps(found, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
