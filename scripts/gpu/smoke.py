#!/usr/bin/env python3
"""The first program for a GPU on which the engine has not run: each part of it by itself, against NumPy in float64.

  scripts/gpu/smoke.py [DEVICE]

Prints a line for each part, and the plans that cuDNN has chosen. Exit code: 0; 1 if a part is wrong; 2 if the engine
does not start.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fcaffe import log
from fcaffe.engines import NumpyEngine, gpu_engine
from fcaffe.engines.windows import Windows

Array = Any

MATHS = ("fp32", "bf16", "tf32", "fp16")
LIMIT = {"fp32": 2e-5, "tf32": 2e-3, "fp16": 4e-3, "bf16": 3e-2}
CONVOLUTIONS = (  # shapes of x and of the weights, windows, group
    ((8, 64, 28, 28), (96, 64, 3, 3), Windows((3, 3), (1, 1), (1, 1), (1, 1)), 1),
    ((8, 3, 64, 64), (32, 3, 7, 7), Windows((7, 7), (2, 2), (3, 3), (1, 1)), 1),
    ((8, 32, 14, 14), (32, 1, 3, 3), Windows((3, 3), (1, 1), (1, 1), (1, 1)), 32),
)
POOLING = Windows((3, 3), (2, 2), (1, 1), (1, 1))
BEGAN = time.monotonic()


class Check:
    """Compares an engine's parts with NumPy's. `wrong` lists what differs."""

    def __init__(self, device: int, math: str, wrong: list[str]) -> None:
        self.device, self.math, self.wrong = device, math, wrong
        self.plain, self.random = NumpyEngine(), np.random.default_rng(1)

    def compare(self, what: str, ours: Any, theirs: Any, math: str = "") -> None:
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        error = np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-30)
        self.note(
            f"{what:44s} relative error {error:.2e}", np.isfinite(ours).all() and error < LIMIT[math or self.math]
        )

    def note(self, what: str, is_right: Any) -> None:
        print(f"{time.monotonic() - BEGAN:6.1f} s  {self.math}  {what}  {'ok' if is_right else 'WRONG'}", flush=True)
        if not is_right:
            self.wrong.append(f"{self.math} {what.split('  ')[0]}")

    # --- the operators ------------------------------------------------------------------------------------------------

    def begin(self, engine: Any) -> None:
        self.engine, self.dtype = engine, engine.half_dtype or np.float32

    def operators(self) -> None:
        self.begin(gpu_engine(self.device, self.math))
        e = self.engine
        self.note(e.name, True)
        for case in CONVOLUTIONS:
            self.convolution(*case)
        self.show_plans()
        a, b, out = self.values(64, 300), self.values(70, 300), e.xp.empty((64, 70), np.float32)
        e.inner_product_forward(self.on_device(a), self.on_device(b, np.float32), None, out, False)
        self.compare("inner product (cuBLAS)", e.to_numpy(out), a.astype(np.float64) @ b.T.astype(np.float64))
        x = self.values(8, 24, 9, 11)
        mean, variance = (e.xp.empty(24, np.float32) for _ in range(2))
        e.batch_norm_moments(self.on_device(x), mean, variance)
        moments = np.r_[e.to_numpy(mean), e.to_numpy(variance)]
        self.compare("batch norm moments", moments, np.r_[x.mean((0, 2, 3)), x.var((0, 2, 3))])
        sums = e.xp.zeros(24, np.float32)
        e.bias_backward(self.on_device(x), sums, False)
        self.compare("bias gradient", e.to_numpy(sums), x.astype(np.float64).sum((0, 2, 3)))
        y, expected = self.blank((8, 24, 5, 6)), np.empty((8, 24, 5, 6), np.float32)
        e.max_pool_forward(self.on_device(x), y, None, POOLING)
        self.plain.max_pool_forward(x, expected, None, POOLING)
        self.compare("max pooling", self.on_host(y), expected)
        y, expected = self.blank(x.shape), np.empty(x.shape, np.float64)
        e.lrn_forward(self.on_device(x), y, None, 5, 1e-1, 0.75, 1.0)
        self.plain.lrn_forward(x.astype(np.float64), expected, None, 5, 1e-1, 0.75, 1.0)
        self.compare("local response normalisation", self.on_host(y), expected)
        total = float(self.on_device(x).astype(np.float32).sum())
        self.compare("CuPy's sums", total, x.astype(np.float64).sum())
        pinned, target = e.host_array((5, 3)), e.xp.zeros((5, 3), np.float32)
        pinned[...] = np.arange(15).reshape(5, 3)
        e.upload(pinned, target).wait()
        self.compare("upload and read_later", e.read_later(target).value(), np.arange(15).reshape(5, 3))

    def convolution(self, x_shape: Any, w_shape: Any, windows: Windows, group: int) -> None:
        e, plain = self.engine, self.plain
        x, w, b = self.values(*x_shape), self.values(*w_shape) / 16, self.values(w_shape[0])
        dy = self.values(x_shape[0], w_shape[0], *windows.convolved(x_shape[2:]))
        y, dx, dw = self.blank(dy.shape), self.blank(x_shape), self.blank(w_shape, np.float32)
        e.convolution_forward(
            self.on_device(x), *(self.on_device(each, np.float32) for each in (w, b)), y, windows, group
        )
        e.convolution_backward_data(self.on_device(dy), self.on_device(w, np.float32), dx, windows, group)
        e.convolution_backward_weights(self.on_device(x), self.on_device(dy), dw, windows, group, False)
        expected = [np.empty(shape, np.float64) for shape in (dy.shape, x_shape, w_shape)]
        x, w, b, dy = (each.astype(np.float64) for each in (x, w, b, dy))
        plain.convolution_forward(x, w, b, expected[0], windows, group)
        plain.convolution_backward_data(dy, w, expected[1], windows, group)
        plain.convolution_backward_weights(x, dy, expected[2], windows, group, False)
        what = f"convolution {w_shape[2]}x{w_shape[3]} {x_shape[1]}->{w_shape[0]} group {group}"
        for part, ours, right in zip(("forward", "data", "weights"), (y, dx, dw), expected, strict=True):
            self.compare(f"{what} {part}", self.on_host(ours), right)

    def show_plans(self) -> None:
        for signature, plan in self.engine.plans._found.items():
            if plan is None:
                self.note(f"no plan for {signature}", False)
                continue
            name = getattr(plan.graph, "get_plan_name_at_index", lambda index: "?")(plan.index)
            print(f"{'':10s}{signature[0]} {signature[2]} {signature[3]}: #{plan.index} {name}, {plan.workspace} bytes")

    # --- training -----------------------------------------------------------------------------------------------------

    def training(self) -> None:
        from tests.gpu.training import losses, small_solver, weights

        solvers: dict[bool, Any] = {
            graphs: small_solver(gpu_engine(self.device, self.math, graphs=graphs)) for graphs in (True, False)
        }
        found = {graphs: losses(solver, 6) for graphs, solver in solvers.items()}
        self.compare("losses with graphs against those without", found[True], found[False], "fp32")
        self.note(
            "graphs change no bit of the weights", np.array_equal(weights(solvers[True]), weights(solvers[False]))
        )
        if self.math == "fp32":
            self.compare("losses against NumPy's", found[True], losses(small_solver(NumpyEngine()), 6))
        works = [work for owner in solvers[True].engine.graphs._owners.values() for work in owner.values()]
        recorded, refused = sum(work.graph is not None for work in works), sum(work.refused for work in works)
        self.note(f"graphs: {recorded} recorded, {refused} refused", recorded and not refused)

    # --- arrays -------------------------------------------------------------------------------------------------------

    def values(self, *shape: int) -> np.ndarray:
        """Random numbers that the engine's 16-bit type has."""
        return self.random.standard_normal(shape).astype(np.float32).astype(self.dtype).astype(np.float32)

    def on_device(self, values: np.ndarray, dtype: Any = None) -> Array:
        """The values there, channels-last."""
        xp, dtype = self.engine.xp, dtype or self.dtype
        if values.ndim < 3:
            return xp.asarray(values.astype(dtype))
        last = np.ascontiguousarray(np.moveaxis(values, 1, -1))
        return xp.moveaxis(xp.asarray(last.astype(dtype)), -1, 1)

    def blank(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return self.on_device(np.full(shape, np.nan, np.float32), dtype)

    def on_host(self, array: Array) -> np.ndarray:
        return self.engine.to_numpy(array).astype(np.float64)


def main() -> int:
    log.set_minimum(1)
    device, wrong = int(sys.argv[1]) if len(sys.argv) > 1 else 0, list[str]()
    for part in (Check.operators, Check.training):
        for math in MATHS:
            try:
                part(Check(device, math, wrong))
            except Exception:  # whatever it is, the other parts are tried
                traceback.print_exc()
                wrong.append(f"{math} {part.__name__} raises an error")
                if math == MATHS[0] and part is Check.operators:
                    print("smoke: the engine does not start")
                    return 2
    print(f"smoke: {'; '.join(wrong) or 'all is right'}, in {time.monotonic() - BEGAN:.0f} s")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
