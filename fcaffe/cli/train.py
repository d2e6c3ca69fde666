"""`fcaffe train`: trains or finetunes the net of a solver."""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.cli.engine import EngineFlags, TrainingGpus, engine_flags
from fcaffe.cli.flags import OWN, WORKERS, Flags, command, flag, with_flags
from fcaffe.cli.progress import Heartbeat, progress_of, recorded, timed
from fcaffe.cli.signals import Signals
from fcaffe.cli.workers import LaunchFlags, SharingFlags, order_of_command
from fcaffe.engines import Engine
from fcaffe.errors import UsageError
from fcaffe.input_files import require_inputs
from fcaffe.jobs.hosts import Plan, Snapshots
from fcaffe.jobs.world import World, join
from fcaffe.net.workers import Workers
from fcaffe.output_files import check_output, remove_leftovers
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_solver
from fcaffe.solvers import Solver
from fcaffe.solvers.learning_rate import SCALES, scale_rate
from fcaffe.solvers.snapshot.runs import new_number, newest
from fcaffe.solvers.snapshot.saving import restore_newest
from fcaffe.timeline import Timeline
from fcaffe.tools.report import PAGE

AUTO = "auto"
TERMINATED = 143  # what a shell sees of a process that SIGTERM ended


@dataclass(frozen=True)
class SolverFlags:
    """The flags that configure the solver, beside its prototxt."""

    on_nan: str = flag(
        ["stop", "continue"], "If the loss is not finite: stop or continue (stop).", "--on-nan", default="stop"
    )
    rng: str = flag(
        ["caffe", "counter"], "Stream that Dropout and other noise in the net draw from (counter).", default="counter"
    )
    scale_lr: str | None = flag(
        list(SCALES),
        "Scale base_lr from the solver's batch to the effective one, which --batch per-worker makes larger.",
        "--scale-lr",
        default=None,
    )
    keep_best: str = flag(
        "OUTPUT",
        "Keep the weights of the best test, by this output of the test net, as PREFIX_best.caffemodel: of losses the "
        "lowest counts, of others the highest, unless OUTPUT ends in :min or :max.",
        "--keep-best",
    )
    patience: int = flag(
        "N", "End the training after N tests without a better --keep-best.", default=0, type=click.IntRange(min=0)
    )
    recompute: bool = flag(
        None, "Save only some activations and recompute the others for backward: less memory, more time.", default=False
    )


@dataclass(frozen=True)
class OutputFlags:
    """What a training writes besides Caffe's files."""

    report: str = flag("FILE.html", "Write a page about the training, while it goes on.")
    tensorboard: str = flag("DIR", "Write the curves for TensorBoard.")
    snapshot_every: float = flag(
        "SECONDS",
        "Also write temporary snapshots; the last two stay until the training has ended well.",
        "--snapshot-every",
        default=0.0,
        type=float,
        least=0,
    )


@command(
    example="train --solver solver.prototxt --snapshot auto",
    file_flag="--solver",
    help="Train the net of --solver FILE, from the start, from a snapshot or from given weights. SIGTERM snapshots "
    f"and ends with exit code {TERMINATED}.",
    caffe="solver weights snapshot gpu level stage sigint_effect sighup_effect",
)
@with_flags("solving", SolverFlags, OWN)
@with_flags("outputs", OutputFlags, OWN)
@with_flags("launching", LaunchFlags, WORKERS)
@with_flags("sharing", SharingFlags, WORKERS)
@engine_flags
def train(launching: LaunchFlags, **groups: Any) -> int:
    given = Training(launching=launching, **groups)
    given.check()
    world, plan = join(launching.timeout), None
    with world:
        if world.order is None:
            plan = launching.plan(given.gpus, given.fits) if world.size == 1 else None
            launching.check(world, plan, given.sharing)
        if plan is None:
            return given.run(world)
    return given.launch(plan)


@dataclass(frozen=True)
class Training:
    """A training as the flags describe it."""

    flags: Flags
    engines: EngineFlags
    launching: LaunchFlags
    sharing: SharingFlags
    solving: SolverFlags
    outputs: OutputFlags

    @property
    def gpus(self) -> TrainingGpus:
        return TrainingGpus(self.flags.gpu, self.launching.gpus)

    @cached_property
    def signals(self) -> Signals:
        return Signals(self.flags.sigint_effect, self.flags.sighup_effect)

    @cached_property
    def _largest_batch(self) -> int:
        """The largest batch that a layer of the training net reads: workers share out that one, if it suffices."""
        from fcaffe.net.build.filter import filter_net
        from fcaffe.solvers.nets import train_net_param
        from fcaffe.tools.shapes import READERS, reader_of

        with log.quiet(3):  # each rank tells about its nets
            param = train_net_param(_configure(read_solver(self.flags.solver), self.flags))[0]
            layers = filter_net(param).layer
        return max((reader_of(one).batch_size for one in layers if one.type in READERS), default=sys.maxsize)

    def check(self) -> None:
        """Raises UsageError for flags and files that are wrong for any number of workers."""
        flags, outputs = self.flags, self.outputs
        if not flags.solver:
            raise UsageError("Need a solver definition to train. Give it as --solver FILE")
        if flags.weights and flags.snapshot not in ("", AUTO):
            raise UsageError("Give a snapshot to resume training or weights to finetune but not both.")
        check_output(outputs.report, PAGE, flags.solver)
        self.gpus.check()
        require_inputs(*flags.weights.split(","), flags.snapshot if flags.snapshot != AUTO else "")
        self.sharing.check()
        assert self.signals  # whose effects are checked

    def shared_by(self, workers: int) -> SharingFlags:
        """How so many workers share the work."""
        return self.sharing.with_batch_of(self.gpus, workers).with_parallel(self.solving.rng)

    def check_workers(self, workers: int) -> None:
        """Raises UsageError if so many workers cannot train."""
        sharing = self.shared_by(workers)
        sharing.check_reproducible(self.solving.rng, workers, bool(self.gpus))
        sharing.check_batch(self._largest_batch, workers)

    def fits(self, workers: int) -> bool:
        try:
            self.check_workers(workers)
        except UsageError:
            return False
        return True

    def launch(self, plan: Plan) -> int:
        """Start the workers of a plan; returns the job's exit code."""
        from fcaffe.jobs.launch import launch

        param = read_solver(self.flags.solver)
        self.check_workers(plan.elastic.least if plan.elastic else plan.workers)
        solver, job = base64.b64encode(param.SerializeToString()).decode(), new_number()

        def order(path: str | None) -> dict[str, Any]:
            given = order_of_command(solver=solver, job=job)
            given["params"] |= {"snapshot": path, "weights": ""} if path else {}
            return given

        states = StatesOfJob(param.snapshot_prefix, self.flags.snapshot, job)
        code = launch(plan, order, self.signals.stopping(), states)
        # The log's last line must stay the one that names a dead rank.
        remove_leftovers(f"{param.snapshot_prefix}_", tell=False)
        return code

    def run(self, world: World) -> int:
        """Train as one of the workers; returns the exit code."""
        solving, outputs, signals = self.solving, self.outputs, self.signals
        signals.save_every = outputs.snapshot_every if world.rank == 0 else 0.0
        param = _solver_param(self.flags, world)
        gpu = self.gpus.take(param, world, on_cpu=bool(self.engines.engine))
        sharing = self.shared_by(world.size)
        sharing.check_reproducible(solving.rng, world.size, gpu is not None)
        engine = _create_engine(gpu, solving.rng, world, self.engines)
        timeline = Timeline()
        options = sharing.for_solver(world, timeline, engine.xp)
        if solving.scale_lr:
            _scale_rate(param, solving.scale_lr, options.get("workers", Workers()))
        solver = Solver(
            param,
            engine,
            solving.rng,
            timeline=timeline,
            recompute=solving.recompute,
            on_nan=solving.on_nan,
            refuses_misfits=True,
            keep_best=solving.keep_best,
            patience=solving.patience,
            requested_action=signals.requested,
            job=world.order["job"] if world.order else 0,
            **options,
        )
        _tell_sharing(solver, sharing, world)
        solver.observers.append(Heartbeat(solver, world.watchdog))
        try:
            _restore(solver, self.flags)
            files = recorded(solver, self.flags.solver, outputs.report, outputs.tensorboard)
            with signals, progress_of(solver), files:
                log.starting_optimization()
                with timed(solver, world.hosts):
                    solver.solve()
                log.run_done()
        finally:
            solver.close()
        terminated = solver.workers.sum(signals.terminated)
        solver.leave_workers()
        done = solver.iteration >= solver.param.max_iter or param.snapshot_after_train
        if done and not terminated and world.rank == 0:
            solver.identity.remove_temporary()
        return TERMINATED if terminated else 0


class StatesOfJob(Snapshots):
    """The states under a prefix, of which this job's ranks write some; `given` is its --snapshot."""

    def __init__(self, prefix: str, given: str, job: int) -> None:
        self.prefix, self.given, self.job = prefix, given, job

    def newest(self) -> str | None:
        return newest(self.prefix, of=self.job, tell=False)

    def _of_all(self) -> str | None:
        return newest(self.prefix, tell=False)

    def source(self) -> str:
        given = self._of_all() if self.given == AUTO else self.given
        return self.newest() or given or "the start"

    def remedy(self) -> str:
        if path := self._of_all():
            return f"; --snapshot auto goes on from {path}"
        return "; there is no snapshot to go on from (--snapshot-every SECONDS writes some)"


def _solver_param(flags: Flags, world: World) -> Any:
    """Read the solver's parameters, unless the launcher has sent them, and apply the flags."""
    if world.order is None:
        return _configure(read_solver(flags.solver), flags)
    return _configure(pb.SolverParameter.FromString(base64.b64decode(world.order["solver"])), flags)


def _configure(solver: Any, flags: Flags) -> Any:
    """Return a copy of the solver's parameters with the flags applied."""
    param = pb.SolverParameter()
    param.CopyFrom(solver)
    param.train_state.level = flags.level
    param.train_state.stage.extend(flags.stages)
    if flags.weights:
        del param.weights[:]
        param.weights.extend(flags.weights.split(","))
    elif flags.snapshot and flags.snapshot != AUTO:
        del param.weights[:]
    return param


def _tell_sharing(solver: Solver, sharing: SharingFlags, world: World) -> None:
    if (share := solver.context.share) and world.size > 1:
        samples = share.total * solver.param.iter_size
        log.info(f"Effective batch: {samples} samples an iteration, over {world.size} workers")
    parameters = solver.net.parameters
    if parameters.exchanged < parameters.extent:
        split = 4 * (parameters.extent - parameters.exchanged)
        log.info(
            f"Hybrid parallelism: each worker has {split:,} bytes of the weights of "
            f"{len({one.layer for one in parameters.owned if one.is_split})} layer(s) to itself, whose gradients are "
            "not exchanged"
        )
    elif sharing.parallel == "hybrid" and world.size > 1:
        log.warning("--parallel hybrid: no InnerProduct moves fewer bytes if its weights are split, so none is")
    if sharing.reproducible:
        threads = len(solver.nets)
        how = f"on {threads} threads side by side" if threads > 1 else "one after the other"
        log.info(
            f"Reproducible: each batch is computed as {sharing.reproducible} shards, this worker's {how}; their "
            "gradients are added up in one tree"
        )


def _restore(solver: Solver, flags: Flags) -> None:
    """Resume from the snapshot that the flags name, and spare other runs' files."""
    if flags.snapshot == AUTO:
        restore_newest(solver)
    elif flags.snapshot:
        log.resuming(flags.snapshot)
        solver.restore(flags.snapshot)
    if solver.workers.rank == 0:
        solver.identity.begin(solver.param, f"fcaffe train --solver {flags.solver}")


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
