#!/usr/bin/env python3
"""Training steps and inference on CPUs, fcaffe against PyTorch, in one run.

  pip install -e ".[bench]" && scripts/bench/cpu.py
  scripts/bench/cpu.py --nets alexnet,nin --batches 16 --math fp32 --rounds 9 --json cpu.json

Each competitor builds the same net from models/*/train_val.prototxt in a process of its own: fcaffe by its solver,
PyTorch as modules (BatchNorm with its Scale as one), in its default layout and in channels_last; bfloat16 is --math
bf16 here and autocast there. They take turns: in each round everybody takes one step, so what else the machine does
meets all alike. A step of training is forward, backward and the update of SGD with momentum and weight decay, at a
rate so low that the net does not fit its one batch, and then multiply denormal numbers, which is slow everywhere. Times
are medians over the rounds. Prints the table of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MODELS = Path(__file__).resolve().parents[2] / "models"
NETS = {
    "lenet": ("lenet", (1, 28, 28)),
    "alexnet": ("alexnet", (3, 227, 227)),
    "nin": ("nin_imagenet", (3, 224, 224)),
    "googlenet": ("googlenet", (3, 224, 224)),
    "vgg16": ("vgg16", (3, 224, 224)),
    "squeezenet": ("squeezenet_v1.1", (3, 227, 227)),
    "resnet50": ("resnet50", (3, 224, 224)),
}
SOLVER = 'type: "SGD" base_lr: 1e-9 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.0005 snapshot_after_train: false'
PEERS = ("default", "channels_last")


# --- the nets ---------------------------------------------------------------------------------------------------------


def net_param(name: str, batch: int, training: bool) -> Any:
    """The net as a message, fed by Input layers; for inference its last layer is a Softmax."""
    from fcaffe.net.filter import filter_net
    from fcaffe.proto import caffe_pb2 as pb
    from fcaffe.proto import read_net

    folder, shape = NETS[name]
    whole = read_net(MODELS / folder / "train_val.prototxt")
    whole.state.phase = pb.TRAIN
    whole = filter_net(whole)
    param = pb.NetParameter(name=whole.name)
    losses = [layer for layer in whole.layer if layer.type == "SoftmaxWithLoss"]
    wanted = {losses[-1].bottom[0]}  # of inference: what leads to the last loss
    keep = []
    for layer in reversed(whole.layer):
        if layer.type == "SoftmaxWithLoss" and not training:
            continue
        if layer.bottom and layer.type != "Accuracy" and (training or wanted & set(layer.top)):
            wanted |= set(layer.bottom)
            keep.append(layer)
    tops = [("data", (batch, *shape))] + [("label", (batch,))] * training
    for top, dims in tops:
        source = param.layer.add(name=top, type="Input", top=[top])
        source.input_param.shape.add(dim=dims)
    param.layer.extend(reversed(keep))
    if not training:
        param.layer.add(name="prob", type="Softmax", bottom=[losses[-1].bottom[0]], top=["prob"])
    return param


stack = contextlib.ExitStack()  # until the process ends


def pictures(name: str, batch: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    spread = 0.3 if name == "lenet" else 50  # of pixels, as in training; LeNet's are scaled to 1
    return random.normal(0, spread, (batch, *NETS[name][1])).astype(np.float32), random.integers(0, 10, batch)


# --- competitors: each gives a function that takes one step -----------------------------------------------------------


def fcaffe_step(name: str, batch: int, training: bool, math: str) -> Callable[[], Any]:
    from fcaffe import log
    from fcaffe.engines import cpu_engine
    from fcaffe.net import Context, Net
    from fcaffe.proto import caffe_pb2 as pb
    from fcaffe.proto import parse_text
    from fcaffe.rng import CaffeRandom
    from fcaffe.solvers import create_solver

    log.set_minimum(1)
    engine = cpu_engine(math)
    images, labels = pictures(name, batch)
    if not training:
        param = net_param(name, batch, False)
        param.state.phase = pb.TEST
        net = Net(param, Context(engine, CaffeRandom(1), noise="counter", inference=True, whole_passes=True))
        net.blob("data").data[...] = images
        stack.enter_context(engine.fixed_weights())
        return net.forward
    solver_param = parse_text(SOLVER, pb.SolverParameter)
    solver_param.net_param.CopyFrom(net_param(name, batch, True))
    solver = create_solver(solver_param, engine, "counter")
    solver.net.blob("data").data[...] = images
    solver.net.blob("label").data[...] = labels
    return lambda: solver.step(1)


def torch_step(name: str, batch: int, training: bool, math: str, layout: str) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(threads())
    images, labels = (torch.from_numpy(array) for array in pictures(name, batch))
    net = torch_net(net_param(name, batch, training))
    if layout == "channels_last":
        net, images = net.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=math == "bf16")
    if not training:
        net.eval()

        def infer() -> None:
            with torch.inference_mode(), autocast:
                net(images, None)

        return infer
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9, momentum=0.9, weight_decay=0.0005)

    def step() -> None:
        optimizer.zero_grad()
        with autocast:
            loss = net(images, labels)
        loss.backward()
        optimizer.step()

    return step


def torch_net(param: Any) -> Any:
    """The net as a torch.nn.Module that runs the layers in order."""
    import torch
    from torch import nn

    from fcaffe import log
    from fcaffe.engines import NumpyEngine
    from fcaffe.net import Context, Net
    from fcaffe.rng import CaffeRandom

    log.set_minimum(1)
    shapes = Net(param, Context(NumpyEngine(), CaffeRandom(1), noise="counter"))
    channels = {name: shapes.blob(name).shape[1:] for name in shapes.blob_names if shapes.has_blob(name)}
    steps: list[tuple[str, list[str], str, Any, float]] = []

    def pooling(p: Any) -> nn.Module:
        average = p.pool == p.AVE
        if p.global_pooling:
            return nn.AdaptiveAvgPool2d(1) if average else nn.AdaptiveMaxPool2d(1)
        kind = nn.AvgPool2d if average else nn.MaxPool2d
        return kind(p.kernel_size, p.stride, p.pad, ceil_mode=True)

    for layer in param.layer:
        module: Any = None
        weight = layer.loss_weight[0] if layer.loss_weight else 1.0
        inputs = 0
        if layer.bottom:
            shape = channels[layer.bottom[0]]
            inputs = shape[0] if shape else 0
        if layer.type == "Input":
            continue
        if layer.type == "Convolution":
            c = layer.convolution_param
            size, stride, pad = c.kernel_size[0], (list(c.stride) or [1])[0], (list(c.pad) or [0])[0]
            module = nn.Conv2d(inputs, c.num_output, size, stride, pad, groups=c.group, bias=c.bias_term)
        elif layer.type == "InnerProduct":
            module = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), layer.inner_product_param.num_output))
        elif layer.type == "Pooling":
            module = pooling(layer.pooling_param)
        elif layer.type == "ReLU":
            module = nn.ReLU(inplace=layer.bottom[0] == layer.top[0])
        elif layer.type == "LRN":
            p = layer.lrn_param
            module = nn.LocalResponseNorm(p.local_size, p.alpha, p.beta, p.k)
        elif layer.type == "Dropout":
            module = nn.Dropout(layer.dropout_param.dropout_ratio)
        elif layer.type == "BatchNorm":
            module = nn.BatchNorm2d(inputs)
        elif layer.type == "Scale":  # is in the BatchNorm
            module = nn.Identity()
        elif layer.type == "Softmax":
            module = nn.Sequential(nn.Flatten(), nn.Softmax(1))
        elif layer.type == "SoftmaxWithLoss":
            module = nn.CrossEntropyLoss()
        elif layer.type not in ("Concat", "Eltwise"):
            raise SystemExit(f"no translation of a layer of type {layer.type}")
        steps.append((layer.type, list(layer.bottom), layer.top[0], module, weight))

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ModuleList(step[3] or nn.Identity() for step in steps)

        def forward(self, images: Any, labels: Any) -> Any:
            blobs, loss = {"data": images}, 0.0
            for (kind, bottoms, top, _, weight), module in zip(steps, self.steps, strict=True):
                x = blobs[bottoms[0]]
                if kind == "SoftmaxWithLoss":
                    loss = loss + weight * module(x.flatten(1), labels)
                elif kind == "Concat":
                    blobs[top] = torch.cat([blobs[bottom] for bottom in bottoms], 1)
                elif kind == "Eltwise":
                    blobs[top] = x + blobs[bottoms[1]]
                else:
                    blobs[top] = module(x)
            return loss if labels is not None else blobs[top]

    return Layers()


# --- the race ---------------------------------------------------------------------------------------------------------


def threads() -> int:
    from fcaffe.threads import available_cpus

    return int(os.environ.get("OMP_NUM_THREADS") or available_cpus())


def compete(words: argparse.Namespace) -> None:
    """A competitor: a step for each line that comes in, its seconds go out; at the end its peak memory in bytes."""
    if words.who == "fcaffe":
        step = fcaffe_step(words.net, words.batch, words.training, words.math)
    else:
        step = torch_step(words.net, words.batch, words.training, words.math, words.who)
    for line in sys.stdin:
        if line == "end\n":
            break
        began = time.perf_counter()
        for _ in range(int(line)):
            step()
        print((time.perf_counter() - began) / int(line), flush=True)
    print(peak_memory(), flush=True)


def peak_memory() -> int:
    """Of this process in bytes. Linux counts in ru_maxrss what its parent had when it started this, too."""
    if os.path.exists("/proc/self/status"):
        with open("/proc/self/status") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Competitor:
    def __init__(self, who: str, net: str, batch: int, training: bool, math: str) -> None:
        words = [sys.executable, __file__, "--who", who, "--net", net, "--batch", str(batch), "--math", math]
        self.who = who
        self.times: list[float] = []
        self.memory = 0.0
        self.process = subprocess.Popen(
            words + ["--training"] * training,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def ask(self, what: str) -> float:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.who} died")
        return float(answer)

    def end(self) -> None:
        self.memory = self.ask("end")
        self.process.wait()


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(threads())}


def race(net: str, batch: int, training: bool, math: str, rounds: int, peers: tuple[str, ...]) -> dict[str, Any]:
    competitors = [Competitor(who, net, batch, training, math) for who in ("fcaffe", *peers)]
    for competitor in competitors:
        for _ in range(2):
            first = competitor.ask("1")
        competitor.steps = max(1, min(50, round(0.1 / first)))  # type: ignore[attr-defined]
    for _ in range(rounds):
        for competitor in competitors:
            competitor.times.append(competitor.ask(str(competitor.steps)))  # type: ignore[attr-defined]
    for competitor in competitors:
        competitor.end()
    result: dict[str, Any] = {"net": net, "batch": batch, "step": "training" if training else "inference", "math": math}
    for competitor in competitors:
        result[competitor.who] = {
            "ms": 1000 * statistics.median(competitor.times),
            "fastest_ms": 1000 * min(competitor.times),
            "memory_mb": competitor.memory / 1e6,
        }
    if peers:
        result["ratio"] = min(result[who]["ms"] for who in peers) / result["fcaffe"]["ms"]
    result["gflops"] = flops(net, batch, training) / result["fcaffe"]["ms"] / 1e6
    return result


def flops(net: str, batch: int, training: bool) -> float:
    """Of convolutions and inner products: a multiplication and an addition each; three times as many in training, but
    for the first layer, whose input needs no gradient."""
    from fcaffe import log
    from fcaffe.engines import NumpyEngine
    from fcaffe.net import Context, Net
    from fcaffe.rng import CaffeRandom

    log.set_minimum(1)
    built = Net(net_param(net, batch, training), Context(NumpyEngine(), CaffeRandom(1), noise="counter"))
    macs = [node.layer.macs(node.bottoms, node.tops) for node in built.nodes if hasattr(node.layer, "macs")]
    return 2.0 * (3 * sum(macs) - macs[0] if training else sum(macs))


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
        peers = [r.get(peer) for peer in PEERS]
        times = [f"{peer['ms']:.1f}" if peer else "" for peer in peers]
        memory = min((peer["memory_mb"] for peer in peers if peer), default=0)
        lines.append(
            f"| {r['net']} | {r['batch']} | {r['step']} | {r['math']} | {r['fcaffe']['ms']:.1f} "
            f"| {times[0]} | {times[1]} | {r.get('ratio', 0):.2f} "
            f"| {r['gflops']:.0f} | {100 * r['gflops'] / peak:.0f} % "
            f"| {r['fcaffe']['memory_mb']:.0f} | {memory:.0f} |"
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

    versions = f"PyTorch {importlib.metadata.version('torch')}, " if peers else ""
    print(f"{machine()}, {threads()} threads, {versions}NumPy {np.__version__}; peak {peak:.0f} GFLOP/s\n")
    print(table(results, peak))
    if words.json:
        Path(words.json).write_text(json.dumps({"machine": machine(), "threads": threads(), "results": results}))


if __name__ == "__main__":
    main()
