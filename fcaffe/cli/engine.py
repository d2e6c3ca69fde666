"""The flags that choose what computes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from fcaffe import log
from fcaffe.engines import MISSING, Engine, cpu_engine, find_onednn
from fcaffe.threads import describe_threads


@dataclass(frozen=True)
class EngineFlags:
    engine: str
    math: str

    def create(self) -> Engine:
        """The engine; says in the log which, and with how many threads. Raises UsageError."""
        engine = cpu_engine(self.math, self.engine)
        missing = "" if self.engine or find_onednn() else f"; {MISSING}"
        log.info(f"{engine.name} engine, {describe_threads()}{missing}")
        return engine


def engine_flags(function: Callable[..., int]) -> Callable[..., int]:
    """Give a click command the flags of EngineFlags, as its argument `engines`."""

    @click.option(
        "--engine",
        type=click.Choice(["onednn", "numpy"]),
        help="What computes on CPUs (oneDNN, or NumPy where that is missing).",
    )
    @click.option(
        "--math",
        type=click.Choice(["fp32", "bf16"]),
        default="fp32",
        help="Type of the factors in convolutions and inner products; sums and weights are float32 (fp32).",
    )
    @functools.wraps(function)
    def with_flags(*args: Any, engine: str | None, math: str, **values: Any) -> int:
        return function(*args, engines=EngineFlags(engine or "", math), **values)

    return with_flags
