#!/usr/bin/env python3
"""FireCaffe's Tables 1 to 3 and the shapes of its Figure 4 and of its supplement's Figure 1, published against what
`fcaffe plan` predicts.

  scripts/paper/paper.py
  scripts/paper/paper.py --json

The published numbers are in published.json. The machine is `titan`: one K20 a node, whose images a second are those of
the paper's one-GPU rows; Gemini at 2.8 GB/s, the one constant that is fitted; no overlap; the sums of equation (4). Net
prototxts lie in models/, but for AlexNet's here, whose convolutions Table 1 counts without groups.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fcaffe import log
from fcaffe.net.build.filter import filter_net
from fcaffe.plan.machine import TITAN
from fcaffe.plan.prediction import Prediction
from fcaffe.plan.work import Work, work_of_net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.nets import read_net_for
from fcaffe.tools.shapes import hollow_net

ROOT = Path(__file__).parents[2]
PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parent / "published.json").read_text())
MODERN = "ring"


@cache
def work(prototxt: str) -> Work:
    return work_of_net(str(ROOT / prototxt))


def volume(prototxt: str) -> tuple[float, float, float]:
    """FireCaffe's equations (1) and (2) over all convolutions and inner products: bytes of weights without biases; for
    each sample the bytes of inputs, and the operations of a pass, 6 for each multiply-add."""
    with log.quiet():
        net, _ = hollow_net(filter_net(read_net_for(prototxt, pb.TRAIN)), prototxt)
    weights = data = flops = 0.0
    for node in net.nodes:
        if node.layer.type in ("Convolution", "InnerProduct"):
            weights += 4 * node.layer.blobs[0].count
            data += 4 * sum(blob.count for blob in node.bottoms) / net.batch_size
            flops += 6 * node.layer.macs(node.bottoms, node.tops) / net.batch_size
    return weights, data, flops


def plan(prototxt: str, batch: int, overlap: bool = False) -> Prediction:
    return Prediction(work(prototxt), TITAN, batch, overlap=overlap)


def table_1() -> list[dict[str, Any]]:
    """Megabytes of weights and activations, and the operations of a batch in units of 10^12."""
    table = PUBLISHED["table_1"]
    rows = []
    for row in table["rows"]:
        weights, data, flops = volume(str(ROOT / row["prototxt"]))
        ours = {
            "weights_mb": weights / 1e6,
            "activations_mb": table["batch"] * data / 1e6,
            "tflop": table["batch"] * flops / 1e12,
        }
        rows.append({"net": row["net"], **{key: _both(row[key], value) for key, value in ours.items()}})
    return rows


def tables_2_and_3() -> list[dict[str, Any]]:
    """Hours of the trainings, and speedups in time to the paper's accuracy over its row of one GPU."""
    rows, base = [], 1.0
    for row in PUBLISHED["tables_2_and_3"]:
        planned = plan(row["prototxt"], row["batch"])
        ours = planned.row(row["gpus"], "tree")
        hours = _hours(row, ours.images_per_second)
        base = hours if row.get("base") else base
        modern = {
            name: plan(row["prototxt"], row["batch"], overlap).row(row["gpus"], MODERN)
            for name, overlap in ((MODERN, False), (f"{MODERN}, overlap", True))
        }
        rows.append(
            {
                **{key: row[key] for key in ("net", "gpus", "batch", "epochs")},
                "hours": _both(row["hours"], hours),
                "speedup": _both(row["speedup"], base / hours),
                "throughput_speedup": ours.speedup,
                "seconds_per_iteration": ours.seconds,
                "communication_share": ours.exposed / ours.seconds,
                "modern": {
                    name: {"hours": _hours(row, one.images_per_second), "throughput_speedup": one.speedup}
                    for name, one in modern.items()
                },
            }
        )
    return rows


def _hours(row: dict[str, Any], images_per_second: float) -> float:
    return float(row["epochs"] * PUBLISHED["images"] / images_per_second / 3600)


def figure_4() -> dict[str, dict[int, float]]:
    """Milliseconds of one sum of NiN's gradients by each way, over the number of GPUs."""
    figure = PUBLISHED["figure_4"]
    planned = plan(figure["prototxt"], 1024)
    return {
        name: {gpus: 1e3 * planned.row(gpus, name).communication for gpus in figure["gpus"]}
        for name in ("server", "tree", "doubling", "ring", "halving")
    }


def supplement_figure_1() -> dict[str, dict[int, tuple[float, float]]]:
    """Seconds of computing and of communication of an iteration of GoogLeNet."""
    figure = PUBLISHED["supplement_figure_1"]
    planned = plan(figure["prototxt"], figure["batch"])
    rows = {name: [planned.row(gpus, name) for gpus in figure["gpus"]] for name in ("server", "tree")}
    return {name: {row.workers: (row.compute, row.communication) for row in found} for name, found in rows.items()}


def _both(published: float, predicted: float) -> dict[str, float]:
    return {"published": published, "predicted": predicted, "error": predicted / published - 1}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.json:
        parts = (table_1, tables_2_and_3, figure_4, supplement_figure_1)
        print(json.dumps({part.__name__: part() for part in parts}, indent=2))
        return 0
    _print()
    return 0


def _print() -> None:
    print("Table 1: a batch of 1024 images; published, predicted")
    for row in table_1():
        cells = (
            _cell(row[key], form) for key, form in (("weights_mb", ".1f"), ("activations_mb", ".0f"), ("tflop", ".2f"))
        )
        print(f"  {row['net']:<10} |W| MB {next(cells)}   |D| MB {next(cells)}   10^12 operations {next(cells)}")
    link = TITAN.between
    print(
        f"\nTables 2 and 3: K20 over {link.name} at {link.bandwidth / 1e9:g} GB/s, the one fitted constant; "
        "equation (4), no overlap"
    )
    for row in tables_2_and_3():
        print(
            f"  {row['net']:<10} {row['gpus']:>3} GPUs, batch {row['batch']:>4}, {row['epochs']} epochs: hours "
            f"{_cell(row['hours'], '.2f')}   speedup {_cell(row['speedup'], '.1f')}   communication "
            f"{row['communication_share']:.0%}"
        )
        for name, modern in row["modern"].items() if row["gpus"] > 1 else ():
            print(f"{'':13}{name}: {modern['hours']:.2f} hours, throughput {modern['throughput_speedup']:.1f}x")
    print("\nFigure 4: one sum of NiN's gradients, ms")
    for name, points in figure_4().items():
        print(f"  {name:<10}" + "".join(f"  {gpus}: {value:.4g}" for gpus, value in points.items()))
    print("\nThe supplement's Figure 1: GoogLeNet, seconds of an iteration, computing and communication")
    for name, parts in supplement_figure_1().items():
        print(f"  {name:<10}" + "".join(f"  {gpus}: {one:.2f} + {other:.2f}" for gpus, (one, other) in parts.items()))
    figure = PUBLISHED["supplement_figure_1"]
    beyond = plan(figure["prototxt"], figure["batch"]).crossover("server")
    print(
        f"  Communication of the parameter server takes the larger part: published beyond "
        f"{figure['server_overtakes_beyond']} GPUs, predicted from {beyond} on"
    )


def _cell(both: dict[str, float], form: str) -> str:
    return f"{both['published']:g}, {both['predicted']:{form}} ({both['error']:+.1%})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
