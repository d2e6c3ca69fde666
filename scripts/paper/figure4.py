#!/usr/bin/env python3
"""FireCaffe's Figure 4 as measured: one sum of NiN's 30 MB of gradients over hosts of scripts/emulated_cluster, by a
parameter server, a tree, a ring and recursive halving, beside the formulas and the paper's curves. Needs root.

  scripts/paper/figure4.py --plot figure_4.png          # five minutes; the server's sums take half of them

The formulas have the links' nominal rate, less Ethernet's and TCP's headers, and the latency that half a sum of 4 bytes
between two hosts takes: what the cores take, which all hosts share here, is not in them. The paper's curves are its
equations for whole buffers, `2 p |W| / bandwidth` for a server beside the workers and `2 log2(p) |W| / bandwidth` for
the tree; fcaffe's server is one of the workers, and its tree goes in segments.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

from competitors import markdown
from emulated import hosts, nominal

from fcaffe.plan.machine import DEVICES, FCAFFE, TEXTBOOK, Link, Machine
from fcaffe.plan.reductions import sum_of
from fcaffe.tools.plot import new_picture, style

BYTES, SHORT, HOSTS = 30_000_000, 4, (2, 4, 8, 16)
COLORS = {"server": "#d1642a", "tree": "#2f6db3", "ring": "#3f8f4f", "halving": "#8a4f9e"}
PAPERS = ("server", "tree")
SAMPLES = {"server": 2}  # in place of three: of links that are full all the time, one sum takes as long as the other

Point = dict[str, Any]


def measure_here(names: Sequence[str], size: int) -> None:
    """On each rank; rank 0 prints the results. Raises AssertionError for a wrong sum."""
    from fcaffe.jobs.world import join

    results = []
    with join(0) as world:
        from fcaffe.parallel.reductions import create_reduction  # which starts MPI, if that is not as fcaffe wants it

        for name in names:
            reduction = create_reduction(name, world.comm)
            buffer = reduction.allocate(size // 4)
            reduction.sum(buffer[:1])  # which makes the connections
            taken = []
            for _ in range(SAMPLES.get(name, 3) if size > SHORT else 25):
                buffer[:] = world.rank + 1
                world.comm.Barrier()
                began = time.perf_counter()
                reduction.sum(buffer)
                taken.append(max(world.comm.allgather(time.perf_counter() - began)))
                assert np.all(buffer == world.size * (world.size + 1) // 2), f"{name}: wrong sums"
            results.append({"reduction": name, "ranks": world.size, "bytes": size, "seconds": median(taken)})
            reduction.close()
    if world.rank == 0:
        print(json.dumps(results))


def measure(rate: str, counts: Sequence[int], file: Path | None) -> list[Point]:
    """A job for each number of hosts; what is measured so far is in the file."""
    results: list[Point] = []
    with hosts(max(counts), rate) as run:

        def sums(ranks: int, names: str, size: int) -> None:
            command = [sys.executable, __file__, "--ranks", "--reduce", names, "--bytes", str(size)]
            words = [*run, "-n", str(ranks), "--", *command]
            results.extend(json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout))
            print(f"{ranks} hosts measured", file=sys.stderr, flush=True)
            if file:
                file.write_text(json.dumps(results, indent=1))

        sums(2, "server", SHORT)
        for ranks in counts:
            sums(ranks, ",".join(COLORS), BYTES)
    return results


def with_formulas(results: list[Point], rate: str) -> list[Point]:
    """Milliseconds of the large sums: measured, by the formula of fcaffe's own reduction, by that of books, which for
    server and tree is the paper's."""
    bandwidth = nominal(rate)
    short = next(result for result in results if result["bytes"] == SHORT)
    link = Link(rate, short["seconds"] / 2, bandwidth, "nominal")
    machine = Machine("emulated", DEVICES["Xeon-8380"], devices_per_node=1, between=link, exchange=FCAFFE)
    points = []
    for result in results:
        if result["bytes"] != BYTES:
            continue
        name, ranks = result["reduction"], result["ranks"]
        ours = sum_of(name, machine, ranks, BYTES).seconds
        books = sum_of(name, replace(machine, exchange=TEXTBOOK), ranks, BYTES).seconds
        found = {"measured": 1e3 * result["seconds"], "formula": 1e3 * ours, "book": 1e3 * books}
        points.append({"reduction": name, "hosts": ranks, **found})
    return points


def table(points: list[Point]) -> str:
    head = ("reduction", "hosts", "measured, ms", "formula, ms", "of books, ms", "measured / formula")
    rows = []
    for point in points:
        numbers = [f"{point[key]:.0f}" for key in ("measured", "formula", "book")]
        ratio = f"{point['measured'] / point['formula']:.2f}"
        rows.append([point["reduction"], str(point["hosts"]), *numbers, ratio])
    return markdown(head, rows)


def draw(points: list[Point], rate: str, path: str) -> None:
    with new_picture(path, (6.4, 4.4)) as figure:
        axes = figure.subplots()
        for name, color in COLORS.items():
            own = [point for point in points if point["reduction"] == name]
            counts = [point["hosts"] for point in own]
            axes.plot(counts, [point["formula"] for point in own], color=color, linewidth=1.2, label=f"{name}, formula")
            if name in PAPERS:
                curve = [point["book"] for point in own]
                axes.plot(counts, curve, color=color, linewidth=0.9, linestyle=":", label=f"{name}, the paper's")
            measured = [point["measured"] for point in own]
            axes.plot(counts, measured, "o", color=color, markersize=5, label=f"{name}, measured")
        axes.set_xscale("log", base=2)
        axes.set_xticks([point["hosts"] for point in own])
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()
        axes.set_xlabel("hosts")
        axes.set_ylabel("time (ms)")
        axes.set_title(f"One sum of {BYTES / 1e6:.0f} MB over links of {rate}", fontsize=11)
        style(axes)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.legend(frameon=False, fontsize=8, ncols=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="200mbit", help="of each link, each way (default: 200mbit)")
    parser.add_argument("--hosts", default=",".join(map(str, HOSTS)))
    parser.add_argument("--plot", default="", metavar="FILE.png")
    parser.add_argument("--json", default="", metavar="FILE", help="what was measured: written, or read if it is there")
    parser.add_argument("--ranks", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--reduce", default="", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, default=BYTES, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.ranks:
        measure_here(words.reduce.split(","), words.bytes)
        return
    file = Path(words.json) if words.json else None
    counts = [int(word) for word in words.hosts.split(",")]
    results = json.loads(file.read_text()) if file and file.exists() else measure(words.rate, counts, file)
    points = with_formulas(results, words.rate)
    print(table(points))
    if words.plot:
        draw(points, words.rate, words.plot)


if __name__ == "__main__":
    main()
