"""The flags that choose and configure the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

import click

from fcaffe import log
from fcaffe.cli import usage
from fcaffe.cli.flags import flag, with_flags
from fcaffe.engines import Engine, cpu_engine, gpu_engine, missing
from fcaffe.errors import UsageError
from fcaffe.threads import describe_threads


@dataclass(frozen=True)
class EngineFlags:
    engine: str | None = flag(
        None,
        "Engine for CPUs (oneDNN, or NumPy where that is missing).",
        default=None,
        type=click.Choice(["onednn", "numpy"]),
    )
    math: str = flag(
        None,
        "Type of the factors in convolutions and inner products; sums and weights are float32. fp16 and bf16 are also "
        "the types of activations; tf32 and fp16 need a GPU. winograd is float32 with fewer multiplications in 3x3 "
        "and 5x5 convolutions on CPUs, and errors some ten times as large (fp32).",
        default="fp32",
        type=click.Choice(["fp32", "winograd", "tf32", "fp16", "bf16"]),
    )
    graphs: bool = flag(None, "On GPUs: no CUDA graphs, to debug.", "--no-graph", default=True, flag_value=False)
    loss_scale: str = flag(
        "N",
        "With --math fp16: multiply gradients by N, or adapt N during training (dynamic, the default).",
        "--loss-scale",
    )
    nondeterministic: bool = flag(
        None,
        "On GPUs: allow faster algorithms whose last bits differ from run to run.",
        "--fast-nondeterministic",
        default=False,
        is_flag=True,
    )

    def create(self, gpu: int | None = None) -> Engine:
        """Create the engine, on this GPU or on the CPU, and log its name. Raises UsageError."""
        return self._on_cpu() if gpu is None else self._on_gpu(gpu)

    def _on_cpu(self) -> Engine:
        for name, given in (
            ("--no-graph", not self.graphs),
            ("--loss-scale", self.loss_scale),
            ("--fast-nondeterministic", self.nondeterministic),
        ):
            if given:
                raise UsageError(f"{name} is for GPUs: give --gpu 0 as well, or leave it out")
        engine = cpu_engine(self.math, self.engine or "")
        lacking = "" if self.engine or self.math != "fp32" else missing()
        log.info(f"{engine.name} engine, {describe_threads()}{lacking and f'; {lacking}'}")
        return engine

    def _on_gpu(self, gpu: int) -> Engine:
        if self.engine:
            raise UsageError(f"--engine {self.engine} computes on CPUs: leave it out on a GPU")
        if self.loss_scale and self.math != "fp16":
            raise UsageError(f"--loss-scale is for --math fp16: {self.math} does without, leave it out")
        engine = gpu_engine(gpu, self.math, not self.nondeterministic, self.graphs, _scale(self.loss_scale))
        graphs = "" if self.graphs else ", no CUDA graphs"
        from fcaffe.engines.cuda.libraries import find_gpu

        gain = find_gpu(gpu).tf32_gain if self.math == "fp32" else 1
        faster = f"; --math tf32 is up to {gain} times as fast" if gain > 1 else ""
        log.info(f"{engine.name} engine{graphs}{', not deterministic' if self.nondeterministic else ''}{faster}")
        return engine


def _scale(text: str) -> float | None:
    """Return the number of a --loss-scale flag; None for a dynamic scale. Raises UsageError."""
    if text in ("", "dynamic"):
        return None
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 0 < scale < math.inf:
        raise UsageError(f"--loss-scale takes a positive number or 'dynamic', not '{text}'")
    return scale


engine_flags = with_flags("engines", EngineFlags, usage.ENGINE)
