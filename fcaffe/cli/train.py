"""`fcaffe train`: trains or finetunes a net, as a solver's prototxt says."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import Flags, caffe_flags
from fcaffe.cli.gpus import TrainingGpus
from fcaffe.cli.progress import progress_of
from fcaffe.cli.recording import recorded
from fcaffe.cli.signals import Signals
from fcaffe.cli.timing import Timing
from fcaffe.cli.usage import Command
from fcaffe.cli.workers import (
    LaunchFlags,
    SharingFlags,
    check_same_flags,
    launch_flags,
    sharing_flags,
    words_for_ranks,
)
from fcaffe.engines import Engine
from fcaffe.errors import UsageError
from fcaffe.net.workers import Workers
from fcaffe.parallel.launch import launch
from fcaffe.parallel.watchdog import Watchdog
from fcaffe.parallel.world import World, join
from fcaffe.proto import read_solver
from fcaffe.solvers import Observer, Solver
from fcaffe.solvers.learning_rate import SCALES, scale_rate
from fcaffe.solvers.snapshot.paths import states
from fcaffe.solvers.snapshot.read import restore_newest

AUTO = "auto"
TERMINATED = 143  # what a shell sees of a process that SIGTERM ended


@click.command(
    cls=Command,
    example="train --solver solver.prototxt --snapshot auto",
    help="Train the net of --solver FILE, from the start, from a snapshot or from given weights. SIGTERM snapshots "
    f"and ends with exit code {TERMINATED}.",
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
@click.option(
    "--scale-lr",
    type=click.Choice(list(SCALES)),
    help="Scale base_lr from the solver's batch to the effective one, which --batch per-worker makes larger.",
)
@click.option(
    "--grow-batch",
    type=click.IntRange(min=1),
    metavar="SAMPLES",
    help="Where the policy (step, multistep) would lower the rate, let the batch grow instead, up to SAMPLES.",
)
@click.option("--report", default="", metavar="FILE.html", help="Write a page about the training, while it goes on.")
@click.option("--tensorboard", default="", metavar="DIR", help="Write the curves for TensorBoard.")
@click.option("--trace", default="", metavar="FILE", help="Write what each worker did when, for chrome://tracing.")
@click.option(
    "--plan",
    "planned",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help="Say before what an iteration should take by the machine's file that plan --calibrate wrote (machine.json), "
    "and after what it took; a FILE that is named also picks --reduce and --bucket-mb.",
)
@click.option(
    "--restarts",
    default=0,
    metavar="N",
    help="With several workers: start again up to N times, from the newest snapshot, if a worker dies or hangs.",
)
@click.option("--gpus", "gpu_count", default="", metavar="N", help="Train with N workers, each on a GPU of its own.")
@click.option(
    "--recompute",
    is_flag=True,
    help="Keep only some activations, and compute the others again for backward: less memory, more time.",
)
@launch_flags
@sharing_flags
@engine_flags
@caffe_flags
def train(
    flags: Flags,
    engines: EngineFlags,
    launching: LaunchFlags,
    sharing: SharingFlags,
    gpu_count: str,
    recompute: bool,
    planned: str | None,
    restarts: int,
    grow_batch: int | None,
    scale_lr: str | None,
    report: str,
    tensorboard: str,
    trace: str,
    on_nan: str,
    rng: str,
) -> int:
    if not flags.solver:
        raise UsageError("Need a solver definition to train. Give it as --solver FILE")
    if flags.weights and flags.snapshot not in ("", AUTO):
        raise UsageError("Give a snapshot to resume training or weights to finetune but not both.")
    gpus = TrainingGpus(flags.gpu, gpu_count)
    gpus.check()
    if planned is not None:
        from fcaffe.cli.training_plan import AfterFirst, machine_of, plan_training

        machine_of(planned)  # before ranks are started
    signals = Signals(flags.sigint_effect, flags.sighup_effect)
    world = join(launching.timeout)
    if world.size == 1 and (plan := launching.plan(restarts, gpus)):
        sharing.with_batch_of(gpus, plan.workers).check_reproducible(rng, plan.workers, bool(gpus))
        prefix = _solver_param(flags).snapshot_prefix
        return launch(plan, words_for_ranks(), _newest_since_now(prefix))
    with world:
        launching.check(world)
        check_same_flags(world)
        param = _solver_param(flags)
        gpu = gpus.take(param, world, on_cpu=bool(engines.engine))
        sharing = sharing.with_batch_of(gpus, world.size)
        sharing.check_reproducible(rng, world.size, gpu is not None)
        engine = _announce(gpu, rng, world, engines)
        timing = Timing(trace, world)
        expected = None
        if planned is not None:
            expected, sharing = plan_training(planned, param, flags.solver, world, sharing, gpu is not None)
        options = sharing.for_solver(world, timing.timeline, engine.xp)
        if scale_lr:
            _scale_rate(param, scale_lr, options.get("workers", Workers()))
        solver = Solver(
            param,
            engine,
            rng,
            timeline=timing.timeline,
            recompute=recompute,
            grow_batch=grow_batch or 0,
            on_nan=on_nan,
            requested_action=signals.requested,
            **options,
        )
        if (share := solver.context.share) and world.size > 1:
            samples = share.total * param.iter_size
            log.info(f"Effective batch: {samples} samples an iteration, over {world.size} workers")
        if sharing.reproducible:
            threads = ", with one thread" if gpu is None else ""
            log.info(
                f"Reproducible: each batch is computed as {sharing.reproducible} shards, one by one{threads}; what "
                "they give is added up in one tree"
            )
        solver.observers.append(Reporter(solver, world.watchdog))
        after_first = None
        if planned is not None:
            after_first = AfterFirst(timing.timeline)
            solver.observers.append(after_first)
        try:
            if flags.snapshot == AUTO:
                restore_newest(solver)
            elif flags.snapshot:
                log.resuming(flags.snapshot)
                solver.restore(flags.snapshot)
            with signals, progress_of(solver), recorded(solver, timing, flags.solver, report, tensorboard):
                if expected:
                    expected.tell()
                log.starting_optimization()
                with timing.of(solver):
                    solver.solve()
                if after_first:
                    everyone = solver.workers.gather(after_first.seconds()) or []
                    if expected:
                        expected.compare(everyone, after_first.begun - 1)
                log.run_done()
        finally:
            solver.close()
        terminated = solver.workers.sum(signals.terminated)
        solver.leave_workers()
        return TERMINATED if terminated else 0


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


def _scale_rate(param: Any, scale: str, workers: Workers) -> None:
    """Scale base_lr as --scale-lr says, and tell."""
    if workers.size == 1 or not workers.per_worker:
        why = "the workers split it; --batch per-worker enlarges it" if workers.size > 1 else "there is one worker"
        log.info(f"--scale-lr {scale}: base_lr stays {log.number(param.base_lr)}, the batch is the solver's ({why})")
        return
    before = log.number(param.base_lr)
    scale_rate(param, scale, workers.size)
    change = f"base_lr {before} becomes {log.number(param.base_lr)}"
    log.info(f"--scale-lr {scale}: {change}, since the batch is {workers.size} times the solver's")


def _newest_since_now(prefix: str) -> Callable[[], str | None]:
    """A function that finds the newest state which is written after this moment: of this run, not of one before."""

    def stamps() -> dict[str, int]:
        return {path: os.stat(path).st_mtime_ns for path in states(prefix)}

    before = stamps()
    return lambda: next((path for path, stamp in stamps().items() if before.get(path) != stamp), None)


class Reporter(Observer):
    """Lets the watchdog know what the solver does."""

    looks = False

    def __init__(self, solver: Solver, watchdog: Watchdog) -> None:
        self.solver = solver
        self.watchdog = watchdog

    def iteration_begins(self) -> None:
        self.watchdog.beat("forward and backward", self.solver.iteration)

    def gradients_ready(self) -> None:
        self.watchdog.beat("the update", self.solver.iteration)

    def iteration_ends(self, loss: float, rate: float) -> None:
        self.watchdog.beat("a snapshot or a test", self.solver.iteration)

    def test_batch_begins(self) -> None:
        self.watchdog.beat("a test", self.solver.iteration)


def _announce(gpu: int | None, rng: str, world: World, engines: EngineFlags) -> Engine:
    """Say what computes, and where noise comes from; returns the engine."""
    if gpu is None:
        log.use_cpu()
    engine = engines.create(gpu)
    if world.size > 1:
        log.info(str(world))
    if rng == "counter":
        log.info(
            "Noise in the net (Dropout, stochastic pooling) comes from the counter-based stream, which does not depend "
            "on the number of workers; --rng caffe draws as BVLC Caffe does"
        )
    else:
        log.info("Noise in the net (Dropout, stochastic pooling) comes from Caffe's stream, in Caffe's order")
    return engine
