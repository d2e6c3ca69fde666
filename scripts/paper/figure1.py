#!/usr/bin/env python3
"""The supplement's Figure 1 as measured: iterations on 1 to 16 emulated hosts, split into computing and exposed
communication, by a parameter server, a tree and what `auto` picks, beside what `fcaffe plan` predicts. Needs root.

  scripts/paper/figure1.py --plot figure_1.png

Hosts and links are those of scripts/emulated_cluster. Computing is emulated as well: each layer sleeps for as long as
a K20 takes for its share of the batch (emulated_device.py). All else is a training as `fcaffe train` does it: gradients
of the net's size, buckets, sums behind backward. In the prediction sums go on
behind backward only. It knows the links' rate and burst, the latency of a short message and how long one rank alone
updates, which takes hosts longer that share cores.

The net is NiN for CIFAR-10, whose 3.9 MB of gradients are added and updated by 16 ranks on two cores in a fraction of
the time that the links take; of NiN's 30 MB the update alone would be as long as a K20's pass.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

from emulated import BURST, hosts, nominal

from fcaffe.log import quiet
from fcaffe.plan.machine import FCAFFE, TITAN, Link
from fcaffe.plan.prediction import Prediction
from fcaffe.plan.work import Compute, Work, compute_of, work_of_net
from fcaffe.solvers import Observer
from fcaffe.timeline import KINDS, OTHER, Timeline
from fcaffe.tools.plot import new_picture, style

ROOT = Path(__file__).resolve().parents[2]
NET = str(ROOT / "models" / "nin_cifar10" / "train_val.prototxt")
REDUCTIONS = {"server": "parameter server", "tree": "tree", "auto": "auto"}
SETTLING, MEASURED = 2, 2  # iterations; sums behind the next forward pass make the first ones unlike later ones
CORES = 1 << 10  # of an emulated host: what sums take is nothing to a device that sleeps
BOUND = 0.15

Point = dict[str, Any]


@cache
def net() -> Work:
    with quiet():
        return work_of_net(NET)


def computing(batch: int, workers: int) -> Compute:
    """Of a worker's share of the batch on a K20."""
    return compute_of(net(), TITAN, "fp32", -(-batch // workers), 1)


class Begins(Observer):
    """When each iteration has begun, and what of the time before was spent on what."""

    looks = False

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.marks: list[tuple[float, dict[str, float]]] = []

    def iteration_begins(self) -> None:
        self.marks.append((time.perf_counter(), dict(self.timeline.seconds)))

    def parts(self) -> dict[str, float]:
        """Seconds of a measured iteration."""
        (began, before), (ended, after) = self.marks[SETTLING], self.marks[SETTLING + MEASURED]
        split = {kind: (after[kind] - before[kind]) / MEASURED for kind in KINDS}
        return {**split, "all": (ended - began) / MEASURED}


def measure_here(batch: int, names: Sequence[str]) -> None:
    """On each rank; rank 0 prints the results."""
    from emulated_device import emulated_solver

    from fcaffe.cli.bench import SHARING, training
    from fcaffe.engines import cpu_engine
    from fcaffe.jobs.world import join

    results = []
    with join() as world:
        engine = cpu_engine()
        for name in names:
            param = emulated_solver(net(), computing(batch, world.size), batch)
            with quiet():
                solver = training(name, param, world, engine, replace(SHARING, reduce=name)).solver
            begins = Begins(solver.timeline)
            solver.observers.append(begins)
            with solver.timeline.span(OTHER):
                solver.step(SETTLING + MEASURED + 1)
            everyone = solver.workers.gather(begins.parts()) or []
            mean = {key: 1e3 * sum(own[key] for own in everyone) / world.size for key in (everyone or [{}])[0]}
            results.append({"reduce": name, "hosts": world.size, "ms": mean})
            solver.close()
            solver.leave_workers()
    if world.rank == 0:
        print(json.dumps(results))


def measure(rate: str, batch: int, counts: Sequence[int]) -> dict[str, Any]:
    """What a prediction needs of the links, and the results for each number of hosts, of which one is the first."""
    own = [sys.executable, __file__, "--ranks", "--batch", str(batch)]
    found: dict[str, Any] = {"rate": rate, "batch": batch, "cores": len(os.sched_getaffinity(0)), "results": []}
    with hosts(max(counts), rate) as run:
        short = [sys.executable, "-m", "fcaffe", "bench", "reduce", "--reduce", "server", "--bytes", "4", "--json"]
        (found["short"],) = json.loads(_output(*run, "-n", "2", "--", *short))
        for count in counts:
            names = list(REDUCTIONS) if count > 1 else ["auto"]
            found["results"] += json.loads(_output(*run, "-n", str(count), "--", *own, "--reduce", ",".join(names)))
            print(f"{count} hosts measured", file=sys.stderr, flush=True)
    return found


def _output(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def plan_for(found: dict[str, Any], workers: int) -> Prediction:
    """The update is that of one rank alone, and of as many as share a core."""
    link = Link(found["rate"], found["short"]["seconds"] / 2, nominal(found["rate"]), "nominal", BURST)
    machine = replace(TITAN, name="emulated", between=link, exchange=FCAFFE, cores=CORES)
    plan = Prediction(net(), machine, found["batch"])
    update = found["results"][0]["ms"]["update"] / 1e3 * max(1.0, workers / found["cores"])
    machine = replace(machine, update_bandwidth=plan.update_bytes(workers) / update)
    return replace(plan, machine=machine)


def points(found: dict[str, Any]) -> list[Point]:
    """Measured and predicted parts of an iteration, in milliseconds."""
    made = []
    for result in found["results"]:
        hosts, parts = result["hosts"], result["ms"]
        measured = {
            "compute": parts["forward"] + parts["backward"],
            "exposed": parts["exposed reduce"] + parts["wait for others"],
            "update": parts["update"],
            "all": parts["all"],
        }
        for name in REDUCTIONS if hosts == 1 else [result["reduce"]]:
            row = plan_for(found, hosts).row(hosts, name)
            seconds = {"compute": row.compute, "exposed": row.exposed, "update": row.update, "all": row.seconds}
            predicted = {key: 1e3 * value for key, value in seconds.items()}
            made.append({"reduce": name, "hosts": hosts, "measured": measured, "predicted": predicted})
    return made


def table(made: Sequence[Point]) -> str:
    lines = ["| hosts | reduction | compute, ms | exposed, ms | update, ms | iteration, ms | predicted / measured |"]
    lines.append("|" + "---|" * 7)
    missed = 0
    for point in sorted(made, key=lambda point: (point["hosts"], list(REDUCTIONS).index(point["reduce"]))):
        parts, ours = point["measured"], point["predicted"]
        cells = [f"{parts[key]:.0f}, {ours[key]:.0f}" for key in parts]
        ratio = ours["all"] / parts["all"]
        missed += abs(ratio - 1) > BOUND
        mark = " **missed**" if abs(ratio - 1) > BOUND else ""
        lines.append(f"| {point['hosts']} | {point['reduce']} | {' | '.join(cells)} | {ratio:.2f}{mark} |")
    return "\n".join([*lines, "", f"{len(made) - missed} of {len(made)} iterations within {BOUND:.0%}"])


def draw(made: Sequence[Point], found: dict[str, Any], path: str) -> None:
    """For each reduction a panel: stacked bars as measured, and the prediction's parts as lines."""
    with new_picture(path, (10, 4)) as figure:
        panels = figure.subplots(1, len(REDUCTIONS), sharey=True)
        figure.suptitle(
            f"NiN for CIFAR-10, {found['batch']:,} images on emulated K20s, links of {found['rate']}", fontsize=13
        )
        for axes, (name, label) in zip(panels, REDUCTIONS.items(), strict=True):
            own = sorted((point for point in made if point["reduce"] == name), key=lambda point: point["hosts"])
            positions = range(len(own))
            compute, exposed = ([point["measured"][key] / 1e3 for point in own] for key in ("compute", "exposed"))
            ours = [[point["predicted"][key] / 1e3 for point in own] for key in ("compute", "all")]
            axes.bar(positions, compute, 0.6, color="#9fb8d6", label="computing, measured")
            axes.bar(positions, exposed, 0.6, bottom=compute, color="#e3a07c", label="exposed sums, measured")
            axes.plot(positions, ours[0], "o--", color="#2f6db3", markersize=4, label="computing, predicted")
            axes.plot(positions, ours[1], "o-", color="#a33f12", markersize=4, label="iteration, predicted")
            axes.set_xticks(positions, [str(point["hosts"]) for point in own])
            axes.set_xlabel("hosts")
            axes.set_title(label, fontsize=11)
            style(axes)
        panels[0].set_ylabel("an iteration (s)")
        panels[-1].legend(frameon=False, fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="100mbit", help="of each link, each way (default: 100mbit)")
    parser.add_argument("--batch", type=int, default=4096, help="of all hosts (default: 4096)")
    parser.add_argument("--hosts", default="1,2,4,8,16")
    parser.add_argument("--plot", default="", metavar="FILE.png")
    parser.add_argument("--json", default="", metavar="FILE", help="what was measured: written, or read if it is there")
    parser.add_argument("--ranks", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--reduce", default=",".join(REDUCTIONS), help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.ranks:
        measure_here(words.batch, words.reduce.split(","))
        return
    file = Path(words.json) if words.json else None
    if file and file.exists():
        found = json.loads(file.read_text())
    else:
        found = measure(words.rate, words.batch, [int(word) for word in words.hosts.split(",")])
        if file:
            file.write_text(json.dumps(found, indent=1))
    made = points(found)
    print(table(made))
    if words.plot:
        draw(made, found, words.plot)


if __name__ == "__main__":
    main()
