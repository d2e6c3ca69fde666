#!/usr/bin/env python3
"""Training steps and inference on CPUs, fcaffe against PyTorch and from Python, in one run.

  pip install -e ".[bench]" && scripts/bench/cpu.py
  scripts/bench/cpu.py --nets alexnet,nin --batches 16 --math fp32 --rounds 9 --json cpu.json

Each competitor builds the same net from models/*/train_val.prototxt in a process of its own: fcaffe by its solver,
PyTorch as modules (BatchNorm with its Scale as one), in its default layout and in channels_last; bfloat16 is --math
bf16 here and autocast there. They take turns: in each round everybody takes one step, so what else the machine does
meets all alike. A step of training is forward, backward and the update of SGD with momentum and weight decay, at a
rate so low that the net does not fit its one batch, and then multiply denormal numbers, which is slow everywhere. Times
are medians over the rounds. Prints the tables of docs/benchmarks.md.

`pycaffe`, in float32 only, is fcaffe as scripts use it: a solver of get_solver or a Net, whose blobs and parameters the
script has all looked at once; for each step it writes the inputs by hand, calls step(1) or forward(), and reads outputs
and a blob in between. Its ratio is to what the command line does, fused and with memory shared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from competitors import Competitor, Racer, serve, take_turns
from nets import DECAY, MOMENTUM, NETS, RATE, SOLVER, flops, net_param, pictures

TORCH = ("default", "channels_last")
PEERS = (*TORCH, "pycaffe")
TURN, MOST = 0.1, 50  # seconds of steps in a turn, and the most steps

stack = contextlib.ExitStack()  # until the process ends


# --- competitors ------------------------------------------------------------------------------------------------------


def fcaffe_racer(name: str, batch: int, training: bool, math: str) -> Racer:
    from fcaffe.threads import set_for_command

    set_for_command()  # as the command line computes

    from fcaffe import log
    from fcaffe.engines import cpu_engine
    from fcaffe.net import Context, Net
    from fcaffe.proto import caffe_pb2 as pb
    from fcaffe.proto import parse_text
    from fcaffe.rng import CaffeRandom
    from fcaffe.solvers import Solver

    log.set_minimum(1)
    engine = cpu_engine(math)
    images, labels = pictures(name, batch)
    if not training:
        param = net_param(name, batch, False)
        param.state.phase = pb.TEST
        net = Net(param, Context(engine, CaffeRandom(1), noise="counter", inference=True, whole_passes=True))
        net.blob("data").data[...] = images
        stack.enter_context(engine.fixed_weights())
        return Racer(lambda steps: [net.forward() for _ in range(steps)])
    solver_param = parse_text(SOLVER, pb.SolverParameter)
    solver_param.net_param.CopyFrom(net_param(name, batch, True))
    solver = Solver(solver_param, engine, "counter")
    solver.net.blob("data").data[...] = images
    solver.net.blob("label").data[...] = labels
    return Racer(solver.step)


def pycaffe_racer(name: str, batch: int, training: bool) -> Racer:
    from google.protobuf import text_format

    import fcaffe as caffe
    from fcaffe import log
    from fcaffe.proto import caffe_pb2 as pb
    from fcaffe.proto import parse_text

    log.set_minimum(1)
    caffe.set_rng("counter")
    images, labels = pictures(name, batch)
    message = net_param(name, batch, training)
    if training:
        message, param = parse_text(SOLVER, pb.SolverParameter), message
        message.net_param.CopyFrom(param)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    file = folder / "it.prototxt"
    file.write_text(text_format.MessageToString(message))
    solver = caffe.get_solver(str(file)) if training else None
    net = solver.net if solver else caffe.Net(str(file), caffe.TEST)
    sizes = [blob.data.shape for blob in net.blobs.values()]
    sizes += [blob.data.shape for blobs in net.params.values() for blob in blobs]
    between = list(net.blobs)[len(net.blobs) // 2]

    def steps(count: int) -> None:
        for _ in range(count):
            net.blobs["data"].data[...] = images
            if solver:
                net.blobs["label"].data[...] = labels
                solver.step(1)
            else:
                net.forward()["prob"].argmax()
            net.blobs[between].data[0].max()

    return Racer(steps)


def torch_racer(name: str, batch: int, training: bool, math: str, layout: str) -> Racer:
    import torch
    from twins import torch_net

    torch.set_num_threads(threads())
    images, labels = (torch.from_numpy(array) for array in pictures(name, batch))
    net: Any = torch_net(net_param(name, batch, training))
    if layout == "channels_last":
        net, images = net.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=math == "bf16")
    if not training:
        net.eval()

        def infer(steps: int) -> None:
            for _ in range(steps):
                with torch.inference_mode(), autocast:
                    net(images, None)

        return Racer(infer)
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            with autocast:
                loss = net(images, labels)
            loss.backward()
            optimizer.step()

    return Racer(train)


# --- the race ---------------------------------------------------------------------------------------------------------


def threads() -> int:
    from fcaffe.threads import available_cpus

    return int(os.environ.get("OMP_NUM_THREADS") or available_cpus())


def compete(words: argparse.Namespace) -> None:
    what = (words.net, words.batch, words.training, words.math)
    if words.who == "fcaffe":
        serve(lambda: fcaffe_racer(*what))
    elif words.who == "pycaffe":
        serve(lambda: pycaffe_racer(*what[:3]))
    else:
        serve(lambda: torch_racer(*what, words.who))


def competitor(who: str, net: str, batch: int, training: bool, math: str) -> Competitor:
    words = [sys.executable, __file__, "--who", who, "--net", net, "--batch", str(batch), "--math", math]
    return Competitor(who, words + ["--training"] * training, {**os.environ, "OMP_NUM_THREADS": str(threads())})


def race(net: str, batch: int, training: bool, math: str, rounds: int, peers: tuple[str, ...]) -> dict[str, Any]:
    peers = tuple(peer for peer in peers if math == "fp32" or peer in TORCH)
    torch = [peer for peer in peers if peer in TORCH]
    racers = [competitor(who, net, batch, training, math) for who in ("fcaffe", *peers)]
    for racer in racers:
        racer.ask("build")
        racer.ask(1)
    take_turns(racers, rounds, TURN, MOST)
    result: dict[str, Any] = {"net": net, "batch": batch, "step": "training" if training else "inference", "math": math}
    for racer in racers:
        racer.end()
        if racer.failure:
            raise SystemExit(f"{racer.who}: {racer.failure}")
        result[racer.who] = {
            "ms": 1000 * racer.seconds,
            "fastest_ms": 1000 * min(racer.times),
            "memory_mb": racer.report["host_memory"] / 1e6,
        }
    if torch:
        result["ratio"] = min(result[who]["ms"] for who in torch) / result["fcaffe"]["ms"]
    if "pycaffe" in peers:
        result["pycaffe_ratio"] = result["pycaffe"]["ms"] / result["fcaffe"]["ms"]
    result["gflops"] = flops(net, batch, training) / result["fcaffe"]["ms"] / 1e6
    return result


def gemm_peak() -> float:
    from fcaffe.engines import cpu_engine
    from fcaffe.tools.peaks import gemm_gflops

    return gemm_gflops(cpu_engine())


def table(results: list[dict[str, Any]], peak: float) -> str:
    lines = [
        "| net | batch | step | math | fcaffe ms | PyTorch ms | channels_last ms | ratio | GFLOP/s | of peak | "
        "fcaffe MB | PyTorch MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        peers = [r.get(peer) for peer in TORCH]
        times = [f"{peer['ms']:.1f}" if peer else "" for peer in peers]
        memory = min((peer["memory_mb"] for peer in peers if peer), default=0)
        lines.append(
            f"| {r['net']} | {r['batch']} | {r['step']} | {r['math']} | {r['fcaffe']['ms']:.1f} "
            f"| {times[0]} | {times[1]} | {r.get('ratio', 0):.2f} "
            f"| {r['gflops']:.0f} | {100 * r['gflops'] / peak:.0f} % "
            f"| {r['fcaffe']['memory_mb']:.0f} | {memory:.0f} |"
        )
    return "\n".join(lines)


def pycaffe_table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| net | batch | step | fcaffe ms | pycaffe ms | ratio | of the fastest |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        if "pycaffe" in r:
            ours, script = r["fcaffe"], r["pycaffe"]
            lines.append(
                f"| {r['net']} | {r['batch']} | {r['step']} | {ours['ms']:.1f} | {script['ms']:.1f} "
                f"| {r['pycaffe_ratio']:.2f} | {script['fastest_ms'] / ours['fastest_ms']:.2f} |"
            )
    return "\n".join(lines)


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
    parser.add_argument("--rounds", type=int, default=7)
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
    peers = tuple(filter(None, words.peers.split(",")))
    for net in words.nets.split(","):
        for batch in map(int, words.batches.split(",")):
            for step in words.steps.split(","):
                for math in words.math.split(","):
                    result = race(net, batch, step == "training", math, words.rounds, peers)
                    results.append(result)
                    print(json.dumps(result), file=sys.stderr, flush=True)
    peak = gemm_peak()
    import importlib.metadata

    versions = f"PyTorch {importlib.metadata.version('torch')}, " if set(peers) & set(TORCH) else ""
    print(f"{machine()}, {threads()} threads, {versions}NumPy {np.__version__}; peak {peak:.0f} GFLOP/s\n")
    print(table(results, peak))
    if any("pycaffe" in result for result in results):
        print(f"\nFrom Python:\n\n{pycaffe_table(results)}")
    if words.json:
        Path(words.json).write_text(json.dumps({"machine": machine(), "threads": threads(), "results": results}))


if __name__ == "__main__":
    main()
