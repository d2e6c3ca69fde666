#!/usr/bin/env python3
"""Training and inference on one NVIDIA GPU, fcaffe against PyTorch.

  scripts/bench/gpu.py --json gpu.json
  scripts/bench/gpu.py --nets vgg16,resnet50 --batches 256 --math bf16 --modes training --recompute
  scripts/bench/gpu.py --table gpu.json another.json     # the tables of earlier runs

Each competitor builds the same net from models/*/train_val.prototxt in a process of its own: fcaffe by its solver, with
CUDA graphs; PyTorch as modules in channels_last with cuDNN's benchmark on, eager and by torch.compile, with fused SGD.
bf16 is autocast in PyTorch. Images and labels are on the device before the first step. The competitors warm up one
after the other (autotuning, compilation, capture of graphs), then take turns in slices of steps. The device is
synchronised at the end of each slice. Times are medians over the slices of the mean step. A step of training is
forward, backward and the update of SGD with momentum and weight decay. A competitor that fails has a row with the
error. `--seconds-budget` ends the run early; the cells that were not measured are listed. Prints Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math as numbers
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from competitors import Competitor, CompetitorError, Slices, take_slices
from gpu_racers import PEERS, compete
from gpu_tables import merged, pages
from nets import NETS, Cell, flops

ROOT = Path(__file__).resolve().parents[2]
RECOMPUTED = ("vgg16", "resnet50")
SLICE, PAUSE = 0.25, 0.1  # seconds of a slice, and of the pause after it
GUESS = 5  # steps that tell how long one takes
WARM = 6  # steps after the first; graphs are captured in them
LONGEST = 240  # seconds that an answer may take
FIRST_ESTIMATE = 40.0  # seconds of a cell, until one has been measured


# --- the race ---------------------------------------------------------------------------------------------------------


class Bench:
    """Measures cell by cell until all are done or the time is up, and appends each row to `results`."""

    def __init__(self, words: argparse.Namespace, folder: Path) -> None:
        self.words, self.folder = words, folder
        self.end = time.monotonic() + (words.seconds_budget or float("inf"))
        self.taken: dict[str, float] = {}  # seconds of the latest cell of each net
        self.results: dict[str, Any] = {
            "machine": machine(words.device),
            "rounds": words.rounds,
            "peak_tflops": {},
            "rows": [],
            "recompute": [],
            "not_measured": [],
        }

    @property
    def cells(self) -> list[Cell]:
        """All cells, in the order of the options."""
        words = self.words
        return [
            Cell(net, batch, mode, math)
            for mode in words.modes
            for batch in words.batches
            for math in words.math
            for net in words.nets
        ]

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def run(self) -> None:
        words = self.words
        for math in words.math:
            if words.peers and (peak := self.peak(math)):
                self.results["peak_tflops"][math] = peak
        for cell, racers in self.started(self.cells, ("fcaffe", *words.peers)):
            self.add("rows", cell, self.row(cell, self.race(cell, racers)))
        if words.recompute:
            cells = [Cell(net, max(words.batches), "training", words.math[0]) for net in RECOMPUTED]
            for cell, racers in self.started(cells, ("fcaffe", "recompute")):
                self.add("recompute", cell, self.recomputed(cell, self.race(cell, racers, digest=True)))

    def add(self, table: str, cell: Cell, row: dict[str, Any]) -> None:
        """Add a row, and write the file again, so that it holds all rows even if the run is killed."""
        if self.left < 0 and any("failure" in one for one in row.values() if isinstance(one, dict)):
            self.results["not_measured"].append(str(cell))
            return
        self.results[table].append(row)
        say(json.dumps(row))
        if self.words.json:
            Path(self.words.json).write_text(json.dumps(self.results, indent=1))

    def started(self, cells: list[Cell], names: tuple[str, ...]) -> Iterator[tuple[Cell, list[Competitor]]]:
        """Each cell with its competitors, while there is time. Those of the next cell import libraries meanwhile."""
        waiting: dict[Cell, list[Competitor]] = {}
        for index, cell in enumerate(cells):
            racers = waiting.pop(cell, [])
            if self.left < self.estimate(cell):
                self.results["not_measured"].append(f"{cell}{' with --recompute' * ('recompute' in names)}")
                for racer in racers:
                    racer.kill()
                continue
            racers = racers or [self.competitor(name, cell) for name in names]
            if self.words.device != "cpu":
                waiting = {later: [self.competitor(name, later) for name in names] for later in cells[index + 1 :][:1]}
            began = time.monotonic()
            yield cell, racers
            self.taken[cell.net] = time.monotonic() - began

    def estimate(self, cell: Cell) -> float:
        """Seconds that the cell may take."""
        first = max(self.taken.values(), default=min(FIRST_ESTIMATE, self.words.seconds_budget))
        return self.taken.get(cell.net, first)

    def competitor(self, who: str, cell: Cell) -> Competitor:
        words = ["--who", who, "--net", cell.net, "--batch", str(cell.batch), "--step", cell.step]
        words += ["--math", cell.math, "--device", self.words.device]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(self.folder / "inductor"))
        number = len(list(self.folder.glob("*.log")))
        log = self.folder / f"{number}-{who}-{cell.net}.log"
        log.touch()
        return Competitor(who, [sys.executable, str(Path(__file__).resolve()), *words], environment, log)

    def race(self, cell: Cell, racers: list[Competitor], digest: bool = False) -> dict[str, dict[str, Any]]:
        """Speed, memory and first step of each competitor, or the error with which it failed.

        `digest`: also a checksum of the gradients after the first step.
        """
        found: dict[str, dict[str, Any]] = {racer.who: {} for racer in racers}
        warm = WARM if self.words.device != "cpu" else 1
        for racer in racers:
            with contextlib.suppress(CompetitorError):
                before = device_memory(self.words.device)
                made, first = (racer.ask(what, self.limit)["seconds"] for what in ("build", 1))
                found[racer.who]["first_step_s"] = made + first
                if digest:
                    found[racer.who] |= racer.ask("digest", self.limit)
                racer.ask(warm, self.limit)
                if before is not None and (after := device_memory(self.words.device)) is not None:
                    found[racer.who]["device_mib"] = after - before
        guess = GUESS if self.words.device != "cpu" else 1
        take_slices(racers, Slices(self.words.rounds, SLICE, warm=guess, pause=PAUSE), self.limit)
        for racer in racers:
            if racer.is_racing:
                racer.end()
            numbers_of(racer, cell, found[racer.who])
            if racer.failure and racer.log:
                say(f"{racer.who} on {cell}: {racer.failure}\n{racer.log.read_text(errors='replace')[-3000:]}")
        return found

    @property
    def limit(self) -> float:
        return min(LONGEST, max(1.0, self.left))

    def row(self, cell: Cell, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
        row: dict[str, Any] = {**vars(cell), **found}
        own = found["fcaffe"].get("images_per_s")
        peers = [found[peer]["images_per_s"] for peer in self.words.peers if "images_per_s" in found[peer]]
        if own and peers:
            row["ratio"] = own / max(peers)
        if own:
            row["tflops"] = flops(cell.net, cell.batch, cell.step == "training") * own / cell.batch / 1e12
            if peak := self.results["peak_tflops"].get(cell.math):
                row["of_peak"] = row["tflops"] / peak
        return row

    def recomputed(self, cell: Cell, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
        row: dict[str, Any] = {**vars(cell), **found}
        plain, spare = found["fcaffe"], found["recompute"]
        if "ms" in plain and "ms" in spare:
            row["time"] = spare["ms"] / plain["ms"]
            row["same_gradients"] = plain["digest"] == spare["digest"]
            row["saved_as_planned"] = 1 - spare["planned_mib"] / plain["planned_mib"]
            both = [one for one in (plain, spare) if "allocated_mib" in one]
            activations = [one["allocated_mib"] - one["parameters_mib"] for one in both]
            if len(activations) == 2:
                row["activations_mib"], row["saved"] = activations, 1 - activations[1] / activations[0]
        return row

    def peak(self, math: str) -> float | None:
        """TFLOP/s of PyTorch's product of large matrices."""
        racer = self.competitor("peak", Cell("lenet", 1, "training", math))
        with contextlib.suppress(CompetitorError):
            racer.ask(5, self.limit)
            racer.end()
        return racer.report.get("tflops")


def numbers_of(racer: Competitor, cell: Cell, found: dict[str, Any]) -> None:
    if racer.is_racing and racer.slices:
        times = list(map(median, racer.slices))
        found["ms"] = 1000 * racer.seconds
        found["images_per_s"] = cell.batch / racer.seconds
        found["spread"] = (max(times) - min(times)) / racer.seconds
        found |= {key: value for key, value in racer.report.items() if key != "import_s"}
        found["first_step_s"] = found.get("first_step_s", 0.0) + racer.report.get("import_s", 0.0)
        if not numbers.isfinite(found.get("loss", 0.0)):
            racer.failure = f"its loss is {found['loss']}"
    if racer.failure:
        found["failure"] = racer.failure
        found.pop("images_per_s", None)
        found.pop("ms", None)


# --- the machine ------------------------------------------------------------------------------------------------------


def nvidia_smi(device: str, fields: str) -> list[str]:
    """Fields of the device from nvidia-smi; an empty list if there is none."""
    command = ["nvidia-smi", "-i", device, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    if device == "cpu" or not shutil.which("nvidia-smi"):
        return []
    done = subprocess.run(command, capture_output=True, text=True)
    return [word.strip() for word in done.stdout.split(",")] if done.returncode == 0 else []


def device_memory(device: str) -> float | None:
    """MiB of the device's memory in use by all processes."""
    try:
        return float(nvidia_smi(device, "memory.used")[0])
    except (IndexError, ValueError):
        return None


def machine(device: str) -> str:
    """The device, and the versions of the libraries that compute on it."""
    import importlib.metadata

    names = [" driver ".join(nvidia_smi(device, "name,driver_version")) or platform.processor() or platform.machine()]
    cuda = ("cupy-cuda13x", "cupy-cuda12x", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-frontend")
    for package in ("torch", "triton", *cuda, "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            names.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join([*names, f"Python {platform.python_version()}"])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the command ------------------------------------------------------------------------------------------------------


def words_of(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    nets = ",".join(net for net in NETS if net not in ("lenet", "mobilenet"))
    parser.add_argument("--device", default="0", help="number of the GPU, or cpu for a trial (default: 0)")
    parser.add_argument("--nets", type=words_of, default=nets, help="(default: %(default)s)")
    parser.add_argument("--batches", type=words_of, default="256,32", help="(default: %(default)s)")
    parser.add_argument("--math", type=words_of, default="bf16,tf32", help="(default: %(default)s)")
    parser.add_argument("--modes", type=words_of, default="training,inference", help="(default: %(default)s)")
    parser.add_argument("--peers", type=words_of, default="eager,compile", help=f"of {', '.join(PEERS)}; may be empty")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each competitor (default: %(default)s)")
    parser.add_argument("--seconds-budget", type=float, default=0, help="stop after about so many (default: no limit)")
    parser.add_argument("--recompute", action="store_true", help=f"also {' and '.join(RECOMPUTED)} with --recompute")
    parser.add_argument("--json", default="", help="write the results to this file too")
    parser.add_argument("--table", nargs="+", metavar="JSON", help="measure nothing: print the tables of these files")
    for name in ("who", "net", "step"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    words = parser.parse_args()
    words.batches = [int(batch) for batch in words.batches]
    maths = ("fp32", "tf32", "fp16", "bf16")
    known: dict[str, Any] = {"nets": NETS, "peers": PEERS, "modes": ("training", "inference"), "math": maths}
    for name, choices in known.items():
        if strange := set(getattr(words, name)) - set(choices):
            parser.error(f"--{name}: no {', '.join(sorted(strange))}; there are {', '.join(choices)}")
    return words


def main() -> None:
    words = parse()
    if words.who:
        words.math = words.math[0]
        compete(words)
        return
    if words.table:
        print(pages(merged(words.table)))
        return
    sys.path.insert(0, str(ROOT))
    from fcaffe import log

    log.set_minimum(1)
    with tempfile.TemporaryDirectory(prefix="fcaffe-bench-") as folder:
        bench = Bench(words, Path(folder))
        try:
            bench.run()
        finally:
            if words.json:
                Path(words.json).write_text(json.dumps(bench.results, indent=1))
            print(pages(bench.results))


if __name__ == "__main__":
    main()
