#!/usr/bin/env python3
"""Data-parallel training on several emulated hosts, fcaffe against PyTorch's DDP over gloo. Needs root.

  pip install -e ".[bench,mpi]" && scripts/bench/hosts.py
  scripts/bench/hosts.py --nets lenet --hosts 4 --rates 1gbit --rounds 3 --json hosts.json
  scripts/bench/hosts.py --nets lenet --hosts 4 --rates 1gbit --reduce auto --compress bf16

scripts/emulated_cluster starts the hosts. Each has a core (several may share one) and a rank with one thread. Both
train the same net with SGD and momentum on synthetic batches in memory, which the hosts split; `batch` is that of all
hosts together. fcaffe runs as `fcaffe train`: losses and signals go over the network in each iteration. DDP has
gradient_as_bucket_view, static_graph and the fused update. The script tries three bucket sizes, and chooses the memory
layout in which the net is faster on these hosts. DDP averages the gradients of the hosts, and reads no loss.

Each contender is a job of its own on all hosts. In each round each contender takes some iterations while the others
sleep. If they do not fit into memory together, each starts again in each round, and bucket sizes that are slower than
DDP's best by a tenth are dropped. Times are those of the slowest host, medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from competitors import Competitor, CompetitorError
from emulated import hosts
from hosts_racers import compete
from hosts_tables import median_of, row_of, table, without_slow_ddp
from nets import BETWEEN_HOSTS, net_param, plain_net

BATCHES = {"lenet": 64, "nin_cifar": 128, "squeezenet": 32, "alexnet": 32}
ONLY_AT = {"alexnet": ("10gbit",)}  # at lower rates the transfer of 244 MB takes nearly all of an iteration
OURS, BUCKETS = ("auto", "tree", "server"), (1, 4, 25)  # reductions; MB
TURN, MOST = 1.0, 50  # seconds of a turn, and the most iterations
PATIENCE = 300  # the most seconds for an answer
# Memory of a contender on each host: of the process, and for each byte of gradients. Weights, gradients and momentum
# are three; the fourth is for copies in other layouts, send buffers and activations.
PROCESS, COPIES = 400e6, 4


class Contender(Competitor):
    """A job of one rank on each host."""

    def take(self, iterations: int) -> dict[str, Any]:
        """Take a turn of this many iterations. Returns its measurements; times are for one iteration."""
        return self.ask(iterations, PATIENCE)


def contender(cluster: list[str], who: str, net: str, batch: int, layout: str, logs: Path) -> Contender:
    own = [sys.executable, __file__, "--who", who, "--net", net, "--batch", str(batch), "--layout", layout]
    command = [*cluster, "--", *own]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return Contender(who, command, {**os.environ, **one_thread}, logs / f"{who}-{net}.log")


def fit_together(net: str, number: int, contenders: int) -> bool:
    """Whether the jobs of all contenders fit into this machine's memory together."""
    from fcaffe import log

    log.set_minimum(1)
    need = PROCESS + COPIES * 4 * plain_net(net_param(net, 1, True)).parameters.count
    with open("/proc/meminfo") as file:
        available = next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    return contenders * number * need < available


def race(net: str, batch: int, number: int, rate: str, words: argparse.Namespace) -> dict[str, Any]:
    """Let all contenders train on this number of hosts.

    Returns the medians of their measurements by their names. Raises CompetitorError if one fails.
    """
    ours = [*words.reduce, *words.compress]
    theirs = [*words.buckets, *(f"{size}-fp16" for size in words.buckets if words.compress)]
    names = [*(f"fcaffe-{name}" for name in ours), *(f"ddp-{size}" for size in theirs)]
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    counts: dict[str, int] = {}
    running: dict[str, Contender] = {}
    layout = ""
    together = fit_together(net, number, len(names))
    with hosts(number, rate, words.cores) as cluster:
        try:
            for _ in range(words.rounds):
                for name in names:
                    if name not in running:
                        running[name] = contender(cluster, name, net, batch, layout, words.logs)
                        running[name].ask("build", PATIENCE)
                        first = running[name].take(1)
                        layout = first.get("layout", layout)  # of the first DDP, for the others
                        counts.setdefault(name, words.iterations or max(1, min(MOST, round(TURN / first["seconds"]))))
                    turns[name].append(running[name].take(counts[name]))
                    if not together:
                        running.pop(name).end()
                if not together:
                    names = without_slow_ddp(names, turns)
            for one in running.values():
                one.end()
        finally:
            for one in running.values():
                one.kill()
    result = {"net": net, "batch": batch, "hosts": number, "rate": rate, "together": together}
    return result | {"contenders": {name: median_of(answers) for name, answers in turns.items()}}


def parse() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", type=names, default=list(BETWEEN_HOSTS))
    parser.add_argument("--hosts", type=names, default=["2", "4", "8"])
    parser.add_argument("--rates", type=names, default=["1gbit", "10gbit"])
    parser.add_argument("--reduce", type=names, default=list(OURS), help="fcaffe's contenders")
    parser.add_argument(
        "--compress", type=names, default=[], help="fcaffe's contenders with this compression; adds DDP's in 16 bits"
    )
    parser.add_argument(
        "--buckets", type=names, default=list(map(str, BUCKETS)), help="bucket sizes of DDP in MB; '' for no DDP"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=0, help="iterations of a turn (0: as many as take a second)")
    parser.add_argument("--cores", type=int, default=1, help="cores of each host (0: all)")
    parser.add_argument("--json", default="", help="write the results to this file too")
    parser.add_argument("--logs", type=Path, default=Path("/tmp"), help="folder for the output of the contenders")
    for name in ("who", "net"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--layout", default="", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if unknown := set(words.nets) - set(BETWEEN_HOSTS):
        parser.error(f"--nets: no {', '.join(sorted(unknown))}; there are {', '.join(BETWEEN_HOSTS)}")
    return words


def main() -> None:
    words = parse()
    if words.who:
        compete(words.who, words.net, words.batch, words.layout)
        return
    results: list[dict[str, Any]] = []
    for net in words.nets:
        for number in map(int, words.hosts):
            for rate in words.rates:
                if len(words.rates) > 1 and rate not in ONLY_AT.get(net, (rate,)):
                    continue
                try:
                    result = race(net, BATCHES[net], number, rate, words)
                except CompetitorError as failure:
                    raise SystemExit(f"{net} on {number} hosts at {rate}: {failure}") from failure
                results.append(result | row_of(result))
                print(json.dumps(results[-1]), file=sys.stderr, flush=True)
                if words.json:
                    Path(words.json).write_text(json.dumps(results, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
