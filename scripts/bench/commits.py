#!/usr/bin/env python3
"""Two commits of fcaffe against each other: training, inference, and a script's forward pass. Prints Markdown.

  scripts/bench/commits.py main~20 main
  scripts/bench/commits.py /path/of/a/checkout HEAD --nets lenet,nin --batches 1 --steps inference

OLD and NEW are folders of checkouts, or commits, which are unpacked into a temporary folder. Each competitor is a
process of its checkout's own scripts/bench/cpu.py, with this Python and its packages. The competitors take turns in
slices of many steps with a pause between them. `ms` is the median over the slices of their mean steps. At inference a
script that uses pycaffe races too; `script / command` is its time over that of the command line, at the new commit.

The first four steps are listed one by one, since some of them compile or record. `slowest later` is the slowest of the
next steps, which are also timed one by one, for at most three seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from competitors import Competitor, CompetitorError, Slices, take_slices
from cpu_racers import threads

ROOT = Path(__file__).resolve().parents[2]
NETS = "lenet,alexnet,googlenet,nin,squeezenet,resnet50"
FIRST, LATER, SECONDS = 4, 16, 3.0  # steps timed one by one, and the most seconds of the later ones
LEAST = 2  # steps of a slice
SIDES = ("old", "new")
HEAD = (
    "net", "batch", "step", "old ms", "new ms", "old / new", "script / command", "old first steps ms",
    "new first steps ms", "slowest later: old ms", "new ms",
)  # fmt: skip


class Contender(Competitor):
    """A competitor that keeps the times of its first steps, in seconds."""

    early: list[float]

    def steps(self, count: int, limit: float = float("inf")) -> list[float]:
        """The mean step: older checkouts do not time each step of a slice."""
        return [self.ask(count, limit)["seconds"] / count]

    def warm_up(self, pause: float) -> None:
        time.sleep(pause)
        self.ask("build")
        self.early = [self.steps(1)[0] for _ in range(FIRST)]
        began = time.monotonic()
        while len(self.early) < FIRST + LATER and (time.monotonic() - began < SECONDS or len(self.early) == FIRST):
            self.early += self.steps(1)


def contender(side: str, who: str, checkout: Path, net: str, batch: str, step: str) -> Contender:
    command = [sys.executable, str(checkout / "scripts" / "bench" / "cpu.py"), "--who", who, "--net", net]
    command += ["--batch", batch, "--math", "fp32", *["--training"] * (step == "training")]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(threads())}
    return Contender(f"{side} {who}", command, environment)


def race(checkouts: dict[str, Path], net: str, batch: str, step: str, plan: Slices) -> list[str]:
    """The rows of a net's table."""
    kinds = ("fcaffe",) if step == "training" else ("fcaffe", "pycaffe")
    racers = {(side, who): contender(side, who, checkouts[side], net, batch, step) for who in kinds for side in SIDES}
    try:
        for racer in racers.values():
            racer.warm_up(plan.pause)
        take_slices(list(racers.values()), plan)
    except CompetitorError:
        pass
    for racer in racers.values():
        if racer.is_racing:
            racer.end()
    if failures := [f"{racer.who}: {racer.failure}" for racer in racers.values() if racer.failure]:
        return [row(net, batch, step, *failures)]
    rows = []
    for who in kinds:
        old, new = (racers[side, who] for side in SIDES)
        share = f"{new.seconds / racers['new', 'fcaffe'].seconds:.2f}" if who == "pycaffe" else ""
        cells = [f"{1000 * old.seconds:.2f}", f"{1000 * new.seconds:.2f}", f"{old.seconds / new.seconds:.2f}", share]
        cells += [" ".join(f"{1000 * seconds:.1f}" for seconds in each.early[:FIRST]) for each in (old, new)]
        cells += [f"{1000 * max(each.early[FIRST:]):.1f}" for each in (old, new)]
        rows.append(row(net, batch, "script's forward" if who == "pycaffe" else step, *cells))
    return rows


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def unpacked(name: str, folder: Path) -> Path:
    """The checkout of a commit, unless the name is that of a folder."""
    if Path(name).is_dir():
        return Path(name).resolve()
    folder.mkdir()
    done = subprocess.run(["git", "-C", str(ROOT), "archive", name], capture_output=True)
    if done.returncode:
        raise SystemExit(f"{name} is neither a folder nor a commit: {done.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--nets", default=NETS, help="(default: %(default)s)")
    parser.add_argument("--batches", default="1,16", help="(default: %(default)s)")
    parser.add_argument("--steps", default="training,inference", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="slices of each competitor (default: %(default)s)")
    parser.add_argument("--slice", type=float, default=0.5, help="seconds of a slice (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds between slices (default: %(default)s)")
    words = parser.parse_args()
    plan = Slices(words.rounds, words.slice, LEAST, pause=words.pause)
    names = words.old, words.new
    with tempfile.TemporaryDirectory() as folder:
        checkouts = {side: unpacked(name, Path(folder) / side) for side, name in zip(SIDES, names, strict=True)}
        print(row(*HEAD), "|---" * len(HEAD) + "|", sep="\n", flush=True)
        for net in words.nets.split(","):
            for batch in words.batches.split(","):
                for step in words.steps.split(","):
                    print(*race(checkouts, net, batch, step, plan), sep="\n", flush=True)


if __name__ == "__main__":
    main()
