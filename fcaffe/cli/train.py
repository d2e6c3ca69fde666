"""`fcaffe train`: trains or finetunes a net, as a solver's prototxt says."""

from __future__ import annotations

from typing import Any

import click

from fcaffe import log
from fcaffe.cli.flags import Flags, caffe_flags
from fcaffe.cli.progress import progress_of
from fcaffe.cli.signals import Signals
from fcaffe.engines import NumpyEngine
from fcaffe.errors import UsageError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_solver
from fcaffe.solvers import create_solver, snapshot
from fcaffe.threads import describe_threads

AUTO = "auto"
TERMINATED = 143  # what a shell sees of a process that SIGTERM ended


@click.command(
    help="Train the net of --solver FILE, from the start, from a snapshot or from given weights. SIGTERM snapshots "
    f"and ends with exit code {TERMINATED}.",
    short_help="train or finetune a net: --solver FILE [--snapshot FILE|auto | --weights FILE,...]",
)
@click.option(
    "--on-nan",
    type=click.Choice(["stop", "snapshot", "continue"]),
    default="stop",
    help="If the loss is no number: stop, stop after a snapshot of the last good state, or go on (stop).",
)
@click.option(
    "--rng",
    type=click.Choice(["caffe", "counter"]),
    default="counter",
    help="Stream that Dropout and other noise in the net draw from (counter).",
)
@caffe_flags
def train(flags: Flags, on_nan: str, rng: str) -> int:
    if not flags.solver:
        raise UsageError("Need a solver definition to train. Give it as --solver FILE")
    if flags.weights and flags.snapshot not in ("", AUTO):
        raise UsageError("Give a snapshot to resume training or weights to finetune but not both.")
    flags.refuse_gpu()
    signals = Signals(flags.sigint_effect, flags.sighup_effect)
    param = _solver_param(flags)
    _announce(param, rng)
    solver = create_solver(param, NumpyEngine(), rng)
    solver.on_nan = on_nan
    solver.requested_action = signals.requested
    try:
        if flags.snapshot == AUTO:
            snapshot.restore_newest(solver)
        elif flags.snapshot:
            log.resuming(flags.snapshot)
            solver.restore(flags.snapshot)
        with signals, progress_of(solver):
            log.starting_optimization()
            solver.solve()
            log.run_done()
    finally:
        solver.close()
    return TERMINATED if signals.terminated else 0


def _solver_param(flags: Flags) -> Any:
    """The solver's parameters with what the flags add to them."""
    param = read_solver(flags.solver)
    param.train_state.level = flags.level
    param.train_state.stage.extend(flags.stages)
    if flags.weights:
        del param.weights[:]
        param.weights.extend(flags.weights.split(","))
    elif flags.snapshot and flags.snapshot != AUTO:
        del param.weights[:]
    return param


def _announce(param: Any, rng: str) -> None:
    """Say what computes, and where noise comes from."""
    if param.HasField("solver_mode") and param.solver_mode == pb.SolverParameter.GPU:
        log.warning("solver_mode: GPU, but this version of fcaffe has no GPU engine: training on the CPU")
    log.use_cpu()
    log.info(f"NumPy engine, {describe_threads()}")
    if rng == "counter":
        log.info(
            "Noise in the net (Dropout, stochastic pooling) comes from the counter-based stream, which does not depend "
            "on the number of workers; --rng caffe draws as BVLC Caffe does"
        )
    else:
        log.info("Noise in the net (Dropout, stochastic pooling) comes from Caffe's stream, in Caffe's order")
