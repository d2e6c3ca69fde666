#!/usr/bin/env python3
"""Where the time of a training step goes on a GPU, kernel by kernel.

  scripts/gpu/kernels.py NET BATCH MATH        # such as resnet50 256 bf16; nets are those of scripts/bench/nets.py

PyTorch's profiler sees the kernels of the whole process. Without PyTorch only the step's time is printed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "bench"), str(ROOT)]

from nets import SOLVER, net_param, pictures  # noqa: E402

from fcaffe import log  # noqa: E402
from fcaffe.engines import gpu_engine  # noqa: E402
from fcaffe.proto import caffe_pb2 as pb  # noqa: E402
from fcaffe.proto import parse_text  # noqa: E402
from fcaffe.solvers import Solver  # noqa: E402

WARM, TIMED, PROFILED, SHOWN = 5, 20, 3, 25  # steps, steps, steps, kernels


def main() -> None:
    net, batch, math = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    log.set_minimum(1)
    try:
        import torch

        torch.zeros(1, device="cuda")  # the profiler's context
    except (ImportError, AssertionError, RuntimeError) as problem:
        torch = None
        print(f"no profile: {problem}")
    solver = solver_of(net, batch, math)
    engine = solver.engine
    solver.step(WARM)
    engine.synchronize()
    began = time.perf_counter()
    solver.step(TIMED)
    engine.synchronize()
    step = (time.perf_counter() - began) / TIMED
    print(f"{net}, batch {batch}, {math}: {1e3 * step:.2f} ms a step, {batch / step:.0f} images/s", flush=True)
    if torch is None:
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        solver.step(PROFILED)
        engine.synchronize()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    busy = sum(row.self_device_time_total for row in rows) / 1e3 / PROFILED
    count = sum(row.count for row in rows) / PROFILED
    print(f"  kernels {busy:.2f} ms, {100 * busy / (1e3 * step):.0f} % of a step; {count:.0f} of them")
    for row in rows[:SHOWN]:
        each = row.self_device_time_total / 1e3 / PROFILED
        print(f"  {each:8.3f} ms {row.count / PROFILED:6.0f} x  {row.key[:110]}")


def solver_of(net: str, batch: int, math: str) -> Solver:
    engine = gpu_engine(0, math)
    param = parse_text(SOLVER, pb.SolverParameter)
    param.net_param.CopyFrom(net_param(net, batch, True))
    solver = Solver(param, engine, "counter")
    for name, values in zip(("data", "label"), pictures(net, batch), strict=True):
        blob = solver.net.blob(name)
        blob.data[...] = engine.from_numpy(values.astype(blob.data.dtype))
    return solver


if __name__ == "__main__":
    main()
