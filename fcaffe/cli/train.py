"""`fcaffe train`: trains or finetunes the net of a solver."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import Flags, caffe_flags, command
from fcaffe.cli.gpus import TrainingGpus
from fcaffe.cli.progress import Heartbeat, progress_of, recorded
from fcaffe.cli.signals import Signals
from fcaffe.cli.solver_flags import SolverFlags, solver_flags
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
from fcaffe.output_files import remove_leftovers
from fcaffe.parallel.launch import launch
from fcaffe.parallel.world import World, join
from fcaffe.proto import read_solver
from fcaffe.solvers import Solver
from fcaffe.solvers.snapshot.paths import remove_states, states, temporary_prefix
from fcaffe.solvers.snapshot.read import restore_newest
from fcaffe.tools.trace import Timing

AUTO = "auto"
TERMINATED = 143  # what a shell sees of a process that SIGTERM ended


@command(
    example="train --solver solver.prototxt --snapshot auto",
    file_flag="--solver",
    help="Train the net of --solver FILE, from the start, from a snapshot or from given weights. SIGTERM snapshots "
    f"and ends with exit code {TERMINATED}.",
    flags=caffe_flags("solver", "weights", "snapshot", "gpu", "level", "stage", "sigint_effect", "sighup_effect"),
)
@solver_flags
@click.option("--report", default="", metavar="FILE.html", help="Write a page about the training, while it goes on.")
@click.option("--tensorboard", default="", metavar="DIR", help="Write the curves for TensorBoard.")
@click.option("--trace", default="", metavar="FILE", help="Write what each worker did when, for chrome://tracing.")
@click.option(
    "--restarts",
    default=0,
    metavar="N",
    help="Start again up to N times, from the newest snapshot, if a worker dies or hangs.",
)
@click.option(
    "--snapshot-every",
    type=float,
    default=0.0,
    metavar="SECONDS",
    help="Also write temporary snapshots for --restarts and --elastic; the last two stay until the job ends.",
)
@click.option("--gpus", "gpu_count", default="", metavar="N", help="Train with N workers, each on a GPU of its own.")
@launch_flags
@sharing_flags
@engine_flags
def train(
    flags: Flags,
    engines: EngineFlags,
    launching: LaunchFlags,
    sharing: SharingFlags,
    solving: SolverFlags,
    gpu_count: str,
    restarts: int,
    snapshot_every: float,
    report: str,
    tensorboard: str,
    trace: str,
) -> int:
    if not flags.solver:
        raise UsageError("Need a solver definition to train. Give it as --solver FILE")
    if flags.weights and flags.snapshot not in ("", AUTO):
        raise UsageError("Give a snapshot to resume training or weights to finetune but not both.")
    gpus = TrainingGpus(flags.gpu, gpu_count)
    gpus.check()
    if snapshot_every < 0:
        raise UsageError("--snapshot-every must not be negative")
    signals = Signals(flags.sigint_effect, flags.sighup_effect)
    nodes = launching.on_nodes(restarts)
    if nodes is None:
        return 0
    world = World() if nodes.hosts and not launching.hosts else join(launching.timeout)

    def check(workers: int) -> None:
        sharing.with_batch_of(gpus, workers).check_reproducible(solving.rng, workers, bool(gpus))

    def fits(workers: int) -> bool:
        try:
            check(workers)
        except UsageError:
            return False
        return True

    if world.size == 1 and (plan := nodes.plan(restarts, gpus, fits)):
        if not plan.elastic:
            check(plan.workers)
        prefix = _solver_param(flags).snapshot_prefix
        temporary = temporary_prefix(prefix)
        remove_states(temporary)  # of a job that was killed
        code = launch(plan, words_for_ranks(), _newest_since_now(prefix, temporary), signals.stopping())
        remove_states(temporary)
        for each in (prefix, temporary):  # the log's last line must stay the one that names a dead rank
            remove_leftovers(f"{each}_iter_", tell=False)
        return code
    with world:
        launching.check(world, restarts)
        signals.save_every = snapshot_every if world.rank == 0 else 0.0
        check_same_flags(world)
        param = _solver_param(flags)
        gpu = gpus.take(param, world, on_cpu=bool(engines.engine))
        sharing = sharing.with_batch_of(gpus, world.size)
        sharing.check_reproducible(solving.rng, world.size, gpu is not None)
        engine = _create_engine(gpu, solving.rng, world, engines)
        timing = Timing(trace, world)
        options = sharing.for_solver(world, timing.timeline, engine.xp)
        solver = solving.solver(param, engine, timing.timeline, signals.requested, options)
        _tell_sharing(solver, sharing, world, gpu)
        solver.observers.append(Heartbeat(solver, world.watchdog))
        try:
            _restore(solver, flags.snapshot)
            with signals, progress_of(solver), recorded(solver, flags.solver, report, tensorboard):
                log.starting_optimization()
                with timing.of(solver):
                    solver.solve()
                log.run_done()
        finally:
            solver.close()
        terminated = solver.workers.sum(signals.terminated)
        solver.leave_workers()
        return TERMINATED if terminated else 0


def _solver_param(flags: Flags) -> Any:
    """Read the solver's parameters and apply the flags."""
    param = read_solver(flags.solver)
    param.train_state.level = flags.level
    param.train_state.stage.extend(flags.stages)
    if flags.weights:
        del param.weights[:]
        param.weights.extend(flags.weights.split(","))
    elif flags.snapshot and flags.snapshot != AUTO:
        del param.weights[:]
    return param


def _newest_since_now(*prefixes: str) -> Callable[[], str | None]:
    """Return a function that finds the newest state written after this moment, so by this run."""

    def stamps() -> dict[str, int]:
        found = {}
        for path in (path for prefix in prefixes for path in states(prefix)):
            with suppress(OSError):  # another process has just removed it
                found[path] = os.stat(path).st_mtime_ns
        return found

    before = stamps()

    def newest() -> str | None:
        since = {path: stamp for path, stamp in stamps().items() if before.get(path) != stamp}
        return max(since, key=lambda path: since[path], default=None)

    return newest


def _tell_sharing(solver: Solver, sharing: SharingFlags, world: World, gpu: int | None) -> None:
    if (share := solver.context.share) and world.size > 1:
        samples = share.total * solver.param.iter_size
        log.info(f"Effective batch: {samples} samples an iteration, over {world.size} workers")
    if sharing.reproducible:
        threads = len(solver.nets)
        how = f"on {threads} threads side by side" if threads > 1 else "one after the other"
        log.info(
            f"Reproducible: each batch is computed as {sharing.reproducible} shards, this worker's {how}; their "
            "gradients are added up in one tree"
        )


def _restore(solver: Solver, snapshot: str) -> None:
    if snapshot == AUTO:
        restore_newest(solver)
    elif snapshot:
        log.resuming(snapshot)
        solver.restore(snapshot)


def _create_engine(gpu: int | None, rng: str, world: World, engines: EngineFlags) -> Engine:
    """Create the engine; log it and the source of noise."""
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
