#!/usr/bin/env python3
"""What a larger batch does to accuracy at equal epochs, the supplement's Figure 2 in small: LeNet on MNIST's digits
with batches of 64 to 2048 images, and the rate scaled by each of several rules.

  scripts/paper/large_batch.py /path/to/mnist --plot large_batch.png

The folder has MNIST's idx files, gzipped or not: all four, or the test set's two, of whose 10,000 digits every fifth is
then held out. The rates at the smallest batch: 0.01, and 0.5 for LARS, which multiplies by about 0.001 of its own.

  sqrt            the rate grows with the root of the batch (FireCaffe's GoogLeNet: 8 times for 32 times the batch)
  linear          it grows with the batch (FireCaffe's NiN, Krizhevsky 2014)
  linear, warm-up the same, after rising to that for a tenth of all iterations (Goyal et al. 2017)
  LARS, warm-up   likewise, with a rate of its own for each parameter (You et al. 2017)
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcaffe.data import array_to_datum, write_lmdb
from fcaffe.data.raw_images import read_idx
from fcaffe.tools.plot import new_picture, style

ROOT = Path(__file__).resolve().parents[2]

BATCH, TIMES = 64, (1, 2, 4, 8, 16, 32)
RATE, LARS_RATE = 0.01, 0.5
RULES = {"sqrt": "#8a4f9e", "linear": "#d1642a", "linear, warm-up": "#2f6db3", "LARS, warm-up": "#3f8f4f"}
HELD_OUT, TEST_BATCH = 5, 100

Point = dict[str, Any]


def digits(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    paths = [next(folder.glob(f"{part}-{kind}-ubyte*")) for kind in ("images-idx3", "labels-idx1")]
    images, labels = map(read_idx, paths)
    return images, labels


def databases(folder: Path, out: Path) -> dict[str, int]:
    """Make the databases `train` and `test`; how many images each has."""
    images, labels = digits(folder, "t10k")
    held_out = np.arange(len(images)) % HELD_OUT == 0
    parts = {"train": (images[~held_out], labels[~held_out]), "test": (images[held_out], labels[held_out])}
    if list(folder.glob("train-images-idx3-ubyte*")):
        parts = {"train": digits(folder, "train"), "test": (images, labels)}
    for name, (chosen, given) in parts.items():
        pairs = enumerate(zip(chosen, given, strict=True))
        datums = ((index, array_to_datum(image[None], label)) for index, (image, label) in pairs)
        write_lmdb(str(out / name), ((b"%08d" % index, datum.SerializeToString()) for index, datum in datums))
    return {name: len(given) for name, (_, given) in parts.items()}


def train(folder: Path, images: dict[str, int], times: int, rule: str, epochs: float, seed: int) -> float | None:
    """The accuracy at the end; None if the training diverged."""
    batch = times * BATCH
    iterations = round(epochs * images["train"] / batch)
    rate = (LARS_RATE if "LARS" in rule else RATE) * (times**0.5 if rule == "sqrt" else times)
    net = (ROOT / "models" / "lenet" / "train_val.prototxt").read_text()
    for part in ("train", "test"):
        net = net.replace(f"data/mnist/mnist_{part}_lmdb", str(folder / part))
    (folder / "net.prototxt").write_text(net.replace(f"batch_size: {BATCH}\n", f"batch_size: {batch}\n"))
    lines = [
        f'net: "{folder / "net.prototxt"}"',
        f"test_iter: {images['test'] // TEST_BATCH} test_interval: {iterations} test_initialization: false",
        f'base_lr: {rate} lr_policy: "poly" power: 0.5 max_iter: {iterations}',
        f"momentum: 0.9 weight_decay: 0.0005 random_seed: {seed} snapshot_after_train: false",
    ]
    if "warm-up" in rule:
        lines.append(f"warmup_iter: {max(1, iterations // 10)}")
    if "LARS" in rule:
        lines.append("local_lr_auto: true")
    solver = folder / "solver.prototxt"
    solver.write_text("\n".join(lines))
    command = [sys.executable, "-m", "fcaffe", "train", "--solver", str(solver)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.findall(r"accuracy = ([0-9.]+)", done.stderr)
    if not found and "not finite" not in done.stderr and "nan" not in done.stderr.lower():
        sys.exit(done.stderr[-2000:])
    return float(found[-1]) if done.returncode == 0 and found else None


def table(points: Sequence[Point]) -> str:
    lines = [f"| batch | {' | '.join(RULES)} |", "|---" * (1 + len(RULES)) + "|"]
    for times in TIMES:
        own = {point["rule"]: point["accuracy"] for point in points if point["batch"] == times * BATCH}
        cells = ["diverged" if own[rule] is None else f"{100 * own[rule]:.1f} %" for rule in RULES if rule in own]
        if cells:
            lines.append(f"| {times * BATCH} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(points: Sequence[Point], path: str) -> None:
    with new_picture(path, (6.4, 4.2)) as figure:
        axes = figure.subplots()
        for rule, color in RULES.items():
            own = [point for point in points if point["rule"] == rule and point["accuracy"] is not None]
            accuracy = [100 * point["accuracy"] for point in own]
            axes.plot([point["batch"] for point in own], accuracy, marker="o", markersize=4, color=color, label=rule)
        axes.set_xscale("log", base=2)
        axes.set_xticks([times * BATCH for times in TIMES])
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()
        axes.set_xlabel("batch")
        axes.set_ylabel("accuracy (%)")
        axes.set_title("LeNet on digits, equal epochs", fontsize=11)
        style(axes)
        axes.legend(frameon=False, fontsize=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path, help="folder of MNIST's files")
    parser.add_argument("--epochs", type=float, default=5.0, help="of each training (default: 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", default="", metavar="FILE.png")
    parser.add_argument("--json", default="", metavar="FILE", help="what was measured: written, or read if it is there")
    words = parser.parse_args()
    file = Path(words.json) if words.json else None
    points: list[Point] = json.loads(file.read_text()) if file and file.exists() else []
    if not points:
        with tempfile.TemporaryDirectory() as temporary:
            images = databases(words.mnist, Path(temporary))
            for times in TIMES:
                for rule in RULES:
                    if times > 1 or rule != "linear":  # which scales the smallest batch's rate no more than `sqrt`
                        accuracy = train(Path(temporary), images, times, rule, words.epochs, words.seed)
                    points.append({"batch": times * BATCH, "rule": rule, "accuracy": accuracy})
                    print(points[-1], file=sys.stderr, flush=True)
                    if file:
                        file.write_text(json.dumps(points, indent=1))
    print(table(points))
    if words.plot:
        draw(points, words.plot)


if __name__ == "__main__":
    main()
