#!/usr/bin/env python3
"""FireCaffe's Figure 4 as measured: one sum of NiN's 30 MB of gradients over hosts of scripts/emulated_cluster, by a
parameter server, a tree, a ring and recursive halving, beside the formulas. Needs root.

  scripts/paper/figure4.py --rate 1gbit --plot figure_4.png

The formulas have the links' nominal rate, less Ethernet's and TCP's headers, and the latency that half a sum of 4 bytes
between two hosts takes: what the cores take, which all hosts share here, is not in them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from emulated import hosts

from fcaffe.plan.closed_forms import FORMS
from fcaffe.plan.devices import DEVICES, Link
from fcaffe.plan.machine import FCAFFE, Machine
from fcaffe.plan.reductions import sum_of
from fcaffe.tools.plot import new_picture, scale_wide, style

BYTES, HOSTS = 30_000_000, (2, 4, 8, 16)
COLORS = {"server": "#d1642a", "tree": "#2f6db3", "ring": "#3f8f4f", "halving": "#8a4f9e"}
PAYLOAD = 1448 / 1514  # of the bytes of a frame: what the links' rate counts has Ethernet's, IP's and TCP's headers
UNITS = {"mbit": 1e6, "gbit": 1e9}

Point = dict[str, Any]


def measure(rate: str) -> list[Point]:
    """One job on all hosts, of which the first ones sum."""
    reduce = ["--reduce", ",".join(COLORS), "--workers", ",".join(map(str, HOSTS))]
    command = [sys.executable, "-m", "fcaffe", "bench", "reduce", *reduce, "--bytes", f"4,{BYTES}", "--json"]
    with hosts(max(HOSTS), rate) as run:
        done = subprocess.run([*run, *command], stdout=subprocess.PIPE, text=True, check=True)
    return [dict(result) for result in json.loads(done.stdout)]


def with_formulas(results: list[Point], rate: str) -> list[Point]:
    """Milliseconds of the large sums: measured, by the formula of fcaffe's own reduction, by that of whole buffers."""
    unit = next(unit for unit in UNITS if rate.endswith(unit))
    bandwidth = PAYLOAD * float(rate.removesuffix(unit)) * UNITS[unit] / 8
    short = next(r for r in results if r["reduction"] == "server" and r["ranks"] == 2 and r["bytes"] == 4)
    link = Link(rate, short["seconds"] / 2, bandwidth, "nominal")
    machine = Machine("emulated", DEVICES["Xeon-8380"], devices_per_node=1, between=link, exchange=FCAFFE)
    points = []
    for result in results:
        if result["bytes"] != BYTES:
            continue
        name, ranks = result["reduction"], result["ranks"]
        ours = sum_of(name, machine, ranks, BYTES).seconds
        books = FORMS[name](BYTES, ranks, link.latency, 1 / bandwidth, 0.0)
        found = {"measured": 1e3 * result["seconds"], "formula": 1e3 * ours, "whole_buffers": 1e3 * books}
        points.append({"reduction": name, "hosts": ranks, **found})
    return points


def table(points: list[Point]) -> str:
    lines = ["| reduction | hosts | measured, ms | formula, ms | of whole buffers, ms | measured / formula |"]
    lines.append("|---|---|---|---|---|---|")
    for point in points:
        numbers = [f"{point[key]:.0f}" for key in ("measured", "formula", "whole_buffers")]
        ratio = f"{point['measured'] / point['formula']:.2f}"
        lines.append(f"| {' | '.join([point['reduction'], str(point['hosts']), *numbers, ratio])} |")
    return "\n".join(lines)


def draw(points: list[Point], rate: str, path: str) -> None:
    with new_picture(path, (6.4, 4.4)) as figure:
        axes = figure.subplots()
        for name, color in COLORS.items():
            own = [point for point in points if point["reduction"] == name]
            places = [point["hosts"] for point in own]
            axes.plot(places, [point["formula"] for point in own], color=color, linewidth=1.2, label=f"{name}, formula")
            measured = [point["measured"] for point in own]
            axes.plot(places, measured, "o", color=color, markersize=5, label=f"{name}, measured")
        axes.set_xscale("log", base=2)
        axes.set_xticks(HOSTS)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()
        axes.set_xlabel("hosts")
        axes.set_ylabel("time (ms)")
        axes.set_title(f"One sum of {BYTES / 1e6:.0f} MB over links of {rate}", fontsize=11)
        style(axes)
        scale_wide(axes, [point[key] for point in points for key in ("measured", "formula")])
        axes.legend(frameon=False, fontsize=8, ncols=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="of each link, each way (default: 1gbit)")
    parser.add_argument("--plot", default="", metavar="FILE.png")
    parser.add_argument("--json", default="", metavar="FILE", help="what was measured: written, or read if it is there")
    words = parser.parse_args()
    file = Path(words.json) if words.json else None
    results = json.loads(file.read_text()) if file and file.exists() else measure(words.rate)
    if file:
        file.write_text(json.dumps(results, indent=1))
    points = with_formulas(results, words.rate)
    print(table(points))
    if words.plot:
        draw(points, words.rate, words.plot)


if __name__ == "__main__":
    main()
