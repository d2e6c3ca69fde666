#!/usr/bin/env python3
"""What --reproducible costs: training iterations with and without it, on this machine. Prints Markdown.

  scripts/bench/reproducible.py
  scripts/bench/reproducible.py --nets alexnet --workers 1 --batch 32 --shards 8 --rounds 9

One worker computes with all cores. Several workers share them. The two trainings take turns in slices of several
iterations, on a synthetic batch. `ms` is the median over the slices of their mean iterations. `adding shards` is the
part of an iteration in which the training thread added up the gradients of shards, or waited for other threads.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from competitors import Competitor, Slices, take_slices

NETS = "alexnet,nin,googlenet"
HEAD = ("net", "workers", "plain ms", "reproducible ms", "ratio", "adding shards ms")


class Contender(Competitor):
    """A training; `adding` has the seconds of an iteration that it added shards up, for each slice."""

    def steps(self, count: int, limit: float = float("inf")) -> list[float]:
        answer = self.ask(count, limit)
        self.adding = [*getattr(self, "adding", []), answer["split"]["adding shards"]]
        return [answer["seconds"]]


def contender(shards: int, net: str, workers: int, words: argparse.Namespace) -> Contender:
    command = [sys.executable, __file__, "--who", str(shards), "--nets", net, "--batch", str(words.batch)]
    if workers > 1:
        command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(workers), *command]
    log = Path(words.log) if words.log else None
    return Contender(f"{net}, {workers} workers, {shards} shards", command, dict(os.environ), log)


def row(net: str, workers: int, words: argparse.Namespace) -> tuple[str, ...]:
    both = [contender(shards, net, workers, words) for shards in (0, words.shards)]
    take_slices(both, Slices(words.rounds, words.seconds, least=2, warm=3, pause=0.5))
    for one in both:
        if one.is_racing:
            one.end()
        if one.failure:
            raise SystemExit(f"{one.who}: {one.failure}")
    plain, reproducible = (1000 * one.seconds for one in both)
    adding = 1000 * sorted(both[1].adding)[len(both[1].adding) // 2]
    return net, str(workers), f"{plain:.1f}", f"{reproducible:.1f}", f"{reproducible / plain:.2f}", f"{adding:.1f}"


def compete(shards: int, net: str, batch: int) -> None:
    from fcaffe import threads

    threads.set_for_command()
    if shards:
        threads.compute_with_one_thread()
    from hosts_racers import compete as train  # which loads NumPy

    train(f"fcaffe-{f'reproducible={shards}' if shards else 'auto'}", net, batch, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default=NETS)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a slice")
    parser.add_argument("--log", default="", help="a file for what the trainings log")
    parser.add_argument("--who", type=int, default=-1, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.who >= 0:
        return compete(words.who, words.nets, words.batch)
    print(f"--reproducible {words.shards}, batch {words.batch}, {os.cpu_count()} cores\n")
    table: list[Any] = [HEAD, ["---"] * len(HEAD)]
    table += [row(net, int(workers), words) for workers in words.workers.split(",") for net in words.nets.split(",")]
    for line in table:
        print(f"| {' | '.join(line)} |", flush=True)
    return None


if __name__ == "__main__":
    main()
