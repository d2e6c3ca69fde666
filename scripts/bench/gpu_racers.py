"""The competitors of gpu.py: for each, a function that builds the net and returns a Racer."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import time
from collections.abc import Callable
from typing import Any

BEGAN = time.perf_counter()

from competitors import Racer, serve  # noqa: E402 - the clock also times the imports
from nets import DECAY, MOMENTUM, RATE, SOLVER, Cell, net_param, pictures  # noqa: E402

PEERS = {
    "eager": "",
    "compile": "default",
    "reduce-overhead": "reduce-overhead",
}  # competitor: mode of torch.compile, or ""
MIB = 1 << 20


def compete(words: argparse.Namespace) -> None:
    """Serve as a competitor. Its libraries are imported before the first question."""
    cell = Cell(words.net, words.batch, words.step, words.math)
    if words.who == "peak":
        serve(lambda: peak_racer(words.device, words.math))
        return
    if words.who in PEERS:
        import torch  # noqa: F401
        import twins  # noqa: F401

        imported = time.perf_counter() - BEGAN
        serve(lambda: torch_racer(cell, words.device, PEERS[words.who], imported))
        return
    import fcaffe.solvers  # noqa: F401

    if words.device != "cpu":
        with contextlib.suppress(ImportError):  # the engine says what is missing
            import cupy  # noqa: F401
    imported = time.perf_counter() - BEGAN
    serve(lambda: fcaffe_racer(cell, words.device, words.who == "recompute", imported))


def fcaffe_racer(cell: Cell, device: str, recompute: bool, imported: float) -> Racer:
    from fcaffe import log
    from fcaffe.engines import cpu_engine, gpu_engine
    from fcaffe.net import Context, Net
    from fcaffe.proto import caffe_pb2 as pb
    from fcaffe.proto import parse_text
    from fcaffe.rng import CaffeRandom
    from fcaffe.solvers import Solver
    from fcaffe.solvers.memory_need import MemoryNeed

    log.set_minimum(1)
    engine = cpu_engine(cell.math) if device == "cpu" else gpu_engine(int(device), cell.math)
    images, labels = pictures(cell.net, cell.batch)

    def put(name: str, values: Any) -> None:
        blob = net.blob(name)
        blob.data[...] = engine.from_numpy(values.astype(blob.data.dtype))

    if cell.step == "inference":
        param = net_param(cell.net, cell.batch, False)
        param.state.phase = pb.TEST
        context = Context(engine, CaffeRandom(1), noise="counter", inference=True, whole_passes=True)
        net = Net(param, context)
        put("data", images)

        def step(steps: int) -> None:
            for _ in range(steps):
                net.start_forward()
    else:
        solver_param = parse_text(SOLVER, pb.SolverParameter)
        solver_param.net_param.CopyFrom(net_param(cell.net, cell.batch, True))
        options = {"recompute": True} if recompute else {}
        solver = Solver(solver_param, engine, "counter", **options)
        net = solver.net
        put("data", images)
        put("label", labels)

        def step(steps: int) -> None:
            solver.step(steps)

    def report() -> dict[str, Any]:
        found: dict[str, Any] = {"import_s": imported, "loss": _output(net, engine, cell.step)}
        if cell.step == "training":
            found["planned_mib"] = MemoryNeed.of(net).activations / MIB
        if device != "cpu":
            pool = engine.xp.get_default_memory_pool()
            found |= {"allocated_mib": pool.total_bytes() / MIB, "in_use_mib": pool.used_bytes() / MIB}
            found["parameters_mib"] = 4 * net.parameters.count * (3 if cell.step == "training" else 1) / MIB
        return found

    def digest() -> str:
        return hashlib.sha256(engine.to_numpy(solver.history[0]).tobytes()).hexdigest()

    return Racer(step, engine.synchronize if device != "cpu" else None, report, digest)


def _output(net: Any, engine: Any, step: str) -> float:
    """The loss or, at inference, the mean sum of probabilities of an image. PyTorch's can be compared with it."""
    if step == "inference":
        values = engine.to_numpy(net.blob("prob").data)
        return float(values.sum()) / len(values)
    return sum(float(engine.to_numpy(blob.data).sum()) * weight for _, blob, weight in net.outputs() if weight)


def torch_racer(cell: Cell, device: str, mode: str, imported: float) -> Racer:
    import torch
    from twins import torch_net

    target = torch.device("cpu" if device == "cpu" else f"cuda:{device}")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = cell.math != "fp32"
    torch.set_float32_matmul_precision("highest" if cell.math == "fp32" else "high")
    images, labels = (torch.from_numpy(array).to(target) for array in pictures(cell.net, cell.batch))
    images = images.to(memory_format=torch.channels_last)
    net: Any = torch_net(net_param(cell.net, cell.batch, cell.step == "training"))
    net = net.to(target, memory_format=torch.channels_last)
    net.train(cell.step == "training")
    called: Any = torch.compile(net, mode=mode) if mode else net
    factors = _torch_type(cell.math)
    autocast = torch.autocast(target.type, factors, enabled=factors != torch.float32)
    last: list[Any] = [None]

    def mark() -> None:
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()

    if cell.step == "inference":
        autocast.__enter__()  # until the process ends, so that weights are cast once

        def step(steps: int) -> None:
            with torch.inference_mode():
                for _ in range(steps):
                    mark()
                    last[0] = called(images, None)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=True)

        def step(steps: int) -> None:
            for _ in range(steps):
                mark()
                optimizer.zero_grad(set_to_none=True)
                with autocast:
                    loss = called(images, labels)
                loss.backward()
                optimizer.step()
                last[0] = loss.detach()

    def report() -> dict[str, Any]:
        found = {"import_s": imported}
        if last[0] is not None:
            found["loss"] = float(last[0].float().sum()) / (cell.batch if cell.step == "inference" else 1)
        if target.type == "cuda":
            found["allocated_mib"] = torch.cuda.max_memory_reserved(target) / MIB
            found["in_use_mib"] = torch.cuda.max_memory_allocated(target) / MIB
        return found

    return Racer(step, torch.cuda.synchronize if target.type == "cuda" else None, report)


def peak_racer(device: str, math: str) -> Racer:
    """Multiplies large square matrices of random numbers; the report is the rate."""
    import torch

    target = torch.device("cpu" if device == "cpu" else f"cuda:{device}")
    synchronize: Callable[[], Any] = torch.cuda.synchronize if target.type == "cuda" else _nothing
    torch.set_float32_matmul_precision("highest" if math == "fp32" else "high")
    side = 8192 if target.type == "cuda" else 512
    a, b = (torch.randn(side, side, device=target, dtype=_torch_type(math)) for _ in range(2))
    rates: list[float] = []

    def step(steps: int) -> None:
        for _ in range(3):
            a @ b
        for _ in range(steps):
            synchronize()
            began = time.perf_counter()
            for _ in range(10):
                a @ b
            synchronize()
            rates.append(10 * 2 * side**3 / (time.perf_counter() - began) / 1e12)

    return Racer(step, synchronize, lambda: {"tflops": sorted(rates)[len(rates) // 2]})


def _torch_type(math: str) -> Any:
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(math, torch.float32)


def _nothing() -> None:
    """The CPU has finished when it returns."""
