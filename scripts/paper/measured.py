#!/usr/bin/env python3
"""Seconds of training iterations that `fcaffe plan` predicts, beside those that `fcaffe bench step` measures.

  sudo .venv/bin/python scripts/paper/measured.py       # all cells, in eight minutes at most
  scripts/paper/measured.py --where here                # 1, 2 and 4 workers of this machine; needs no root
  sudo .venv/bin/python scripts/paper/measured.py --where 1gbit,10gbit  # hosts of scripts/emulated_cluster
  scripts/paper/measured.py --where here --nets lenet --json out.json

Workers of one host are predicted from one and two ranks. Between hosts of the cluster, which have one core each and
share those of this machine, the layers are measured once by two of them, whatever the links, and each kind of link
once; all cells are predicted from that, whatever the number of workers or hosts and the reduction. A measurement during
which other programs took cores is repeated while there is time (quiet_run.py), and marked if no repetition was without.
Both sides are of the shortest of several turns, which between hosts have iterations enough that the last one's sums,
behind which no forward pass comes, make little of it. What there is no time for is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from emulated import hosts

ROOT = Path(__file__).resolve().parents[2]
QUIET = Path(__file__).parent / "quiet_run.py"
NETS = {"lenet": (64, "1,28,28"), "nin_cifar10": (64, "3,32,32"), "alexnet": (8, "3,227,227")}
BETWEEN = {"lenet": (64, 12), "nin_cifar10": (32, 4)}  # on the cluster: batch, and iterations of a turn
ROUNDS = 4
LAST = 30  # seconds that the last cell may take
REPEATING = 300  # seconds that must be left for a measurement to be repeated
WORKERS, HOSTS = (1, 2, 4), (2, 4, 8)
REDUCTIONS = ("server", "tree", "ring")
RING = 4_000_000  # bytes that rings sum to show what the cores take for messages
DISTURBED = 75  # what quiet_run.py exits with
BOUND = 0.15  # of the measurement, that a prediction may be away

Cell = dict[str, Any]


class Measurement:
    """Runs the commands."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.deadline = time.monotonic() + seconds
        self.disturbed = False  # the last one

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self.deadline

    def run(self, *command: str) -> str:
        """The standard output. Raises CalledProcessError."""
        spare = self.deadline - time.monotonic() > REPEATING
        quiet = [sys.executable, str(QUIET)] + ["--once"] * (not spare)
        done = subprocess.run([*quiet, *command], stdout=subprocess.PIPE, text=True)
        self.disturbed = done.returncode == DISTURBED
        if not self.disturbed:
            done.check_returncode()
        return done.stdout


def fcaffe(*words: str) -> list[str]:
    return [sys.executable, "-m", "fcaffe", *words]


def net_flags(net: str) -> list[str]:
    return ["--net", str(ROOT / "models" / net / "train_val.prototxt"), "--input-shape", NETS[net][1]]


def calibration(net: str, batch: int, workers: Sequence[int], file: Path) -> list[str]:
    counts = ",".join(map(str, workers))
    return fcaffe(
        "plan", "--calibrate", *net_flags(net), "--batch", str(batch), "--workers", counts, "--out", str(file)
    )


def predicted(net: str, batch: int, workers: int, reduce: str, file: Path) -> float:
    """Milliseconds an iteration."""
    flags = ["--batch", str(batch), "--workers", str(workers), "--reduce", reduce, "--machine", str(file), "--json"]
    done = subprocess.run(fcaffe("plan", *net_flags(net), *flags), check=True, capture_output=True, text=True)
    return 1000 * float(json.loads(done.stdout)[0]["seconds_per_iteration"])


def step(net: str, batch: int, reductions: Sequence[str], iterations: int = 0) -> list[str]:
    flags = ["--reduce", ",".join(reductions), "--rounds", str(ROUNDS), "--iterations", str(iterations), "--json"]
    return fcaffe("bench", "step", *net_flags(net), "--batch-size", str(batch), *flags)


def here(measurement: Measurement, net: str) -> Iterator[Cell]:
    """Workers of this machine, which split the batch."""
    batch, file = NETS[net][0], measurement.folder / f"here-{net}.json"
    mpiexec = str(Path(sys.executable).parent / "mpiexec")
    if not measurement.has_time:
        return
    measurement.run(*calibration(net, batch, WORKERS, file))
    measurement.run(mpiexec, "-n", "2", *calibration(net, batch, WORKERS, file))
    for workers in WORKERS:
        if not measurement.has_time:
            return
        (result,) = json.loads(measurement.run(*step(net, batch, ["auto"]), "--workers", str(workers)))["results"]
        cell = {"where": "one host", "net": net, "batch": batch, "workers": workers, "reduce": "auto"}
        yield {**cell, "measured": result, "disturbed": measurement.disturbed, "file": file}


def cluster(measurement: Measurement, net: str, rate: str) -> Iterator[Cell]:
    """Hosts with one worker each."""
    if not measurement.has_time:
        return
    (batch, iterations), file = BETWEEN[net], measurement.folder / f"{rate}-{net}.json"
    layers = measurement.folder / f"layers-{net}.json"
    if not layers.exists():
        with hosts(HOSTS[0], rate) as run:
            measurement.run(*run, *calibration(net, batch, HOSTS, layers))
    measured = [{**one, "ranks": HOSTS[0]} for one in json.loads(layers.read_text())["measured"]]
    file.write_text(json.dumps(links(measurement, rate) | {"measured": measured}))
    for number in HOSTS:
        if not measurement.has_time:
            return
        with hosts(number, rate) as run:
            found = json.loads(measurement.run(*run, *step(net, batch, REDUCTIONS, iterations)))["results"]
        for reduce, result in zip(REDUCTIONS, found, strict=True):
            cell = {"where": rate, "net": net, "batch": batch, "workers": number, "reduce": reduce}
            yield {**cell, "measured": result, "disturbed": measurement.disturbed, "file": file}


def links(measurement: Measurement, rate: str) -> dict[str, Any]:
    """The machine's file for hosts with such links: these as two hosts measure them, and as the most do what their
    cores take for messages."""
    file = measurement.folder / f"{rate}.json"
    if not file.exists():
        with hosts(HOSTS[0], rate) as run:
            measurement.run(*run, *fcaffe("plan", "--calibrate", "--out", str(file)))
        machine = json.loads(file.read_text())
        machine |= {"devices_per_node": 1, "nodes_share_cores": True, "cores": len(os.sched_getaffinity(0))}
        file.write_text(json.dumps(machine | crowded(measurement, machine, rate)))
    return dict(json.loads(file.read_text()))


def crowded(measurement: Measurement, machine: dict[str, Any], rate: str) -> dict[str, float]:
    """Seconds of a core for a message and a byte at either end, as rings between the most hosts show them, in whose
    rounds all of these take and give one at the same time on the cores that they share."""
    number, size = max(HOSTS), RING
    with hosts(number, rate) as run:
        command = fcaffe("bench", "reduce", "--reduce", "ring", "--bytes", f"64,{size}", "--json")
        short, long = (result["seconds"] for result in json.loads(measurement.run(*run, *command)))
    rounds, part, ends = 2 * (number - 1), size / number, 2 * number / machine["cores"]
    adding = rounds / 2 * part / machine["add_bandwidth"] * number / machine["cores"]
    per_byte = max(0.0, long - short - adding) / rounds / part / ends
    if long < 1.2 * rounds * part / machine["between"]["bandwidth"]:  # the links, not the cores, say how long it takes
        per_byte = min(per_byte, machine["cpu_per_byte"])
    return {"cpu_per_message": short / rounds / ends, "cpu_per_byte": per_byte}


def compared(cell: Cell) -> Cell:
    """The cell with its prediction."""
    file = cell.pop("file")
    ms = predicted(cell["net"], cell["batch"], cell["workers"], cell["reduce"], file)
    return {**cell, "predicted_ms": ms, "ratio": ms / cell["measured"]["least_ms"]}


def table(cells: Sequence[Cell]) -> str:
    head = ("where", "net", "batch", "workers", "reduce", "predicted, ms", "measured, ms", "predicted / measured", "")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cell in cells:
        numbers = f"{cell['predicted_ms']:.1f}", f"{cell['measured']['least_ms']:.1f}", f"{cell['ratio']:.2f}"
        notes = ["missed"] * (abs(cell["ratio"] - 1) > BOUND) + ["disturbed"] * cell["disturbed"]
        words = [str(cell[key]) for key in ("where", "net", "batch", "workers", "reduce")]
        lines.append(f"| {' | '.join([*words, *numbers, ', '.join(notes)])} |")
    within = sum(abs(cell["ratio"] - 1) <= BOUND for cell in cells)
    return "\n".join([*lines, "", f"{within} of {len(cells)} cells within {BOUND:.0%} of the measurement"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", default="here,1gbit,10gbit", help="here, and rates of the emulated cluster's links")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no cell is begun (default: 8)")
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--json", default="", help="write the cells to this file, too")
    parser.add_argument("--keep", type=Path, help="a folder for the machines' files")
    words = parser.parse_args()
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory() as temporary:
        if words.keep:
            words.keep.mkdir(parents=True, exist_ok=True)
        measurement = Measurement((words.keep or Path(temporary)).resolve(), 60 * words.minutes - LAST)
        places = [(where, net) for net in words.nets.split(",") for where in words.where.split(",")]
        for where, net in places:
            if where != "here" and net not in BETWEEN:
                continue
            for cell in here(measurement, net) if where == "here" else cluster(measurement, net, where):
                cells.append(compared(cell))
                print(table(cells[-1:]).splitlines()[2], file=sys.stderr, flush=True)
                if words.json:
                    Path(words.json).write_text(json.dumps(cells, indent=1))
        if not measurement.has_time:
            print(f"The {words.minutes:g} minutes are over; what is not in the table has not been measured.")
    print(table(cells))


if __name__ == "__main__":
    main()
