"""The flags of a training that configure its solver, beside the solver's prototxt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from fcaffe import log
from fcaffe.cli import usage
from fcaffe.cli.flags import flag, with_flags
from fcaffe.engines import Engine
from fcaffe.net.workers import Workers
from fcaffe.solvers import Action, Solver
from fcaffe.solvers.learning_rate import SCALES, scale_rate
from fcaffe.timeline import Timeline


@dataclass(frozen=True)
class SolverFlags:
    on_nan: str = flag(
        None,
        "If the loss is not finite: stop, stop after a snapshot of the last good state, or continue (stop).",
        "--on-nan",
        default="stop",
        type=click.Choice(["stop", "snapshot", "continue"]),
    )
    rng: str = flag(
        None,
        "Stream that Dropout and other noise in the net draw from (counter).",
        default="counter",
        type=click.Choice(["caffe", "counter"]),
    )
    scale_lr: str | None = flag(
        None,
        "Scale base_lr from the solver's batch to the effective one, which --batch per-worker makes larger.",
        "--scale-lr",
        default=None,
        type=click.Choice(list(SCALES)),
    )
    grow_batch: int | None = flag(
        "SAMPLES",
        "Where the policy (step, multistep) would lower the rate, let the batch grow instead, up to SAMPLES.",
        "--grow-batch",
        default=None,
        type=click.IntRange(min=1),
    )
    recompute: bool = flag(
        None,
        "Save only some activations and recompute the others for backward: less memory, more time.",
        default=False,
        is_flag=True,
    )

    def solver(
        self, param: Any, engine: Engine, timeline: Timeline, requested: Callable[[], Action], options: dict[str, Any]
    ) -> Solver:
        """Create the solver, after --scale-lr has changed `param.base_lr`. Collective.

        Args:
            requested: Returns the action that a signal asks for.
            options: Solver's arguments about other workers.
        """
        if self.scale_lr:
            _scale_rate(param, self.scale_lr, options.get("workers", Workers()))
        return Solver(
            param,
            engine,
            self.rng,
            timeline=timeline,
            recompute=self.recompute,
            grow_batch=self.grow_batch or 0,
            on_nan=self.on_nan,
            requested_action=requested,
            **options,
        )


def _scale_rate(param: Any, scale: str, workers: Workers) -> None:
    """Scale base_lr as --scale-lr says, and log it."""
    if workers.size == 1 or not workers.per_worker:
        why = "the workers split it; --batch per-worker enlarges it" if workers.size > 1 else "there is one worker"
        log.info(f"--scale-lr {scale}: base_lr stays {log.number(param.base_lr)}, the batch is the solver's ({why})")
        return
    before = log.number(param.base_lr)
    scale_rate(param, scale, workers.size)
    change = f"base_lr {before} becomes {log.number(param.base_lr)}"
    log.info(f"--scale-lr {scale}: {change}, since the batch is {workers.size} times the solver's")


solver_flags = with_flags("solving", SolverFlags, usage.OWN)
