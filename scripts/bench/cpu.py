#!/usr/bin/env python3
"""Training steps and inference on CPUs, fcaffe against others and from Python, in one run.

  pip install -e ".[bench]" && scripts/bench/cpu.py
  scripts/bench/cpu.py --nets alexnet,nin --batches 16 --math fp32 --rounds 9 --json cpu.json
  scripts/bench/cpu.py --steps training --peers channels_last,compile

Each competitor builds the same net from models/*/train_val.prototxt in a process of its own. fcaffe trains by its
solver. PyTorch runs modules (a BatchNorm with its Scale as one) in its default layout, in channels_last and, if
`compile` is among the peers, by torch.compile. ONNX Runtime and OpenVINO, at inference only, read the ONNX file that
fcaffe writes. `--math bf16` is autocast in PyTorch and the inference precision in OpenVINO. `ratio` is to the fastest
of them.

A step of training is forward, backward and the update of SGD with momentum and weight decay. The rate is so low that
the net does not fit its one batch, since it would then multiply denormal numbers, which is slow everywhere.

The competitors take turns in slices of many steps, with a pause between them, after the steps in which some record or
compile. `ms` is the median over the slices of their median steps; `of the fastest` compares the fastest steps. The JSON
file has the minimum and the median of each slice. Prints the table of docs/benchmarks.md.

`pycaffe`, in float32 only, is fcaffe as scripts use it: a solver of get_solver or a Net, whose blobs and parameters the
script has all read once. In each step it writes the inputs, calls step(1) or forward(), and reads the outputs and an
intermediate blob. Its ratio is to fcaffe as the command line runs it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from statistics import median
from typing import Any

from competitors import Competitor, Slices, fastest_step, markdown, serve, take_slices
from cpu_racers import PYTORCH, RUNTIMES, racer, runs, threads
from nets import NETS, flops

OTHERS = (*PYTORCH, *RUNTIMES)
PEERS = ("default", "channels_last", *RUNTIMES, "pycaffe")
NAMES = {"default": "PyTorch"}
LEAST, WARM = 4, 6  # steps of a slice at least, and before the first slice: some record or compile in them


def compete(words: argparse.Namespace) -> None:
    serve(lambda: racer(words.who, words.net, words.batch, words.training, words.math))


def competitor(who: str, net: str, batch: int, training: bool, math: str) -> Competitor:
    words = [sys.executable, __file__, "--who", who, "--net", net, "--batch", str(batch), "--math", math]
    return Competitor(who, words + ["--training"] * training, {**os.environ, "OMP_NUM_THREADS": str(threads())})


def race(net: str, batch: int, training: bool, math: str, plan: Slices, peers: tuple[str, ...]) -> dict[str, Any]:
    """The times of all competitors for one net.

    `ms` is the median over the slices of their median steps, `fastest_ms` the fastest step of all.
    """
    peers = tuple(peer for peer in peers if runs(peer, training, math))
    others = [peer for peer in peers if peer != "pycaffe"]
    runners = [competitor(who, net, batch, training, math) for who in ("fcaffe", *peers)]
    take_slices(runners, plan)
    result: dict[str, Any] = {"net": net, "batch": batch, "step": "training" if training else "inference", "math": math}
    for runner in runners:
        if runner.is_racing:
            runner.end()
        if runner.failure:
            raise SystemExit(f"{runner.who}: {runner.failure}")
        result[runner.who] = {
            "ms": 1000 * runner.seconds,
            "fastest_ms": 1000 * fastest_step(runner.slices),
            "slices": [{"min_ms": 1000 * min(each), "median_ms": 1000 * median(each)} for each in runner.slices],
            "memory_mb": runner.report["host_memory"] / 1e6,
        }
    if others:
        for ratio, time in (("ratio", "ms"), ("fastest_ratio", "fastest_ms")):
            result[ratio] = min(result[who][time] for who in others) / result["fcaffe"][time]
    if "pycaffe" in peers:
        result["pycaffe_ratio"] = result["pycaffe"]["ms"] / result["fcaffe"]["ms"]
    result["gflops"] = flops(net, batch, training) / result["fcaffe"]["ms"] / 1e6
    return result


def gemm_peak() -> float:
    from fcaffe.engines import cpu_engine
    from fcaffe.tools.profile import gemm_gflops

    return gemm_gflops(cpu_engine())


def table(results: list[dict[str, Any]], peak: float) -> str:
    peers = [peer for peer in (*OTHERS, "pycaffe") if any(peer in result for result in results)]
    names = [NAMES.get(peer, peer) for peer in peers]
    head = ["net", "batch", "step", "math", "fcaffe ms", *(f"{name} ms" for name in names)]
    head += ["ratio", "of the fastest", "pycaffe / fcaffe", "GFLOP/s", "of peak"]
    head += ["fcaffe MB", *(f"{name} MB" for name in names)]
    rows = []
    for r in results:
        cells = [r["net"], str(r["batch"]), r["step"], r["math"]]
        cells += [f"{r[who]['ms']:.2f}" if who in r else "" for who in ("fcaffe", *peers)]
        cells += [f"{r[ratio]:.2f}" if ratio in r else "" for ratio in ("ratio", "fastest_ratio", "pycaffe_ratio")]
        cells += [f"{r['gflops']:.0f}", f"{100 * r['gflops'] / peak:.0f} %"]
        cells += [f"{r[who]['memory_mb']:.0f}" if who in r else "" for who in ("fcaffe", *peers)]
        rows.append(cells)
    return markdown(head, rows)


def machine() -> str:
    name = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), name)
    return name


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--batches", default="1,16,64")
    parser.add_argument("--steps", default="training,inference")
    parser.add_argument("--math", default="fp32,bf16")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=5, help="slices of each competitor (default: %(default)s)")
    parser.add_argument("--slice", type=float, default=1, help="seconds of a slice (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between slices (default: %(default)s)")
    parser.add_argument("--json", default="", help="write the results to this file too")
    for name in ("who", "net"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--training", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    words = parse()
    if words.who:
        compete(words)
        return
    results = []
    plan = Slices(words.rounds, words.slice, LEAST, warm=WARM, pause=words.pause)
    peers = tuple(filter(None, words.peers.split(",")))
    for net in words.nets.split(","):
        for batch in map(int, words.batches.split(",")):
            for step in words.steps.split(","):
                for math in words.math.split(","):
                    result = race(net, batch, step == "training", math, plan, peers)
                    results.append(result)
                    print(json.dumps(result), file=sys.stderr, flush=True)
    peak = gemm_peak()

    packages = ["torch"] * bool(set(peers) & set(PYTORCH)) + [peer for peer in RUNTIMES if peer in peers] + ["numpy"]
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    print(f"{machine()}, {threads()} threads, {versions}; peak {peak:.0f} GFLOP/s\n")
    print(table(results, peak))
    if words.json:
        Path(words.json).write_text(json.dumps({"machine": machine(), "threads": threads(), "results": results}))


if __name__ == "__main__":
    main()
