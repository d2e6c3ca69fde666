"""`fcaffe train`: trains or finetunes the net of a solver."""

from __future__ import annotations

import base64
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass
from types import FrameType
from typing import Any

import click

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.cli.engine import EngineFlags, TrainingGpus, engine_flags
from fcaffe.cli.flags import OWN, WORKERS, Flags, caffe_flags, command, flag, with_flags
from fcaffe.cli.progress import TRACE, Heartbeat, Timing, progress_of, recorded
from fcaffe.cli.workers import LaunchFlags, SharingFlags, check_same_flags, order_of_command
from fcaffe.engines import Engine
from fcaffe.errors import UsageError
from fcaffe.input_files import require_inputs
from fcaffe.jobs.hosts import Plan, Snapshots
from fcaffe.jobs.world import World, join
from fcaffe.net.workers import Workers
from fcaffe.output_files import check_output, remove_leftovers
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_solver
from fcaffe.solvers import Action, Solver
from fcaffe.solvers.learning_rate import SCALES, scale_rate
from fcaffe.solvers.snapshot.read import check_whole, restore_newest
from fcaffe.solvers.snapshot.runs import new_number, newest
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
        "N",
        "End the training after N tests without a better --keep-best.",
        default=0,
        type=click.IntRange(min=0),
    )
    recompute: bool = flag(
        None, "Save only some activations and recompute the others for backward: less memory, more time.", default=False
    )


def _refuse_growth(context: click.Context, param: click.Parameter, samples: str | None) -> None:
    if samples is not None:
        raise UsageError(
            "--grow-batch no longer exists: leave it out, and the rate drops as lr_policy says. To let the batch grow, "
            "end the training at the drop, and resume it by --snapshot with a larger iter_size at the same rate"
        )


@command(
    example="train --solver solver.prototxt --snapshot auto",
    file_flag="--solver",
    help="Train the net of --solver FILE, from the start, from a snapshot or from given weights. SIGTERM snapshots "
    f"and ends with exit code {TERMINATED}.",
    flags=caffe_flags("solver", "weights", "snapshot", "gpu", "level", "stage", "sigint_effect", "sighup_effect"),
)
@with_flags("solving", SolverFlags, OWN)
@click.option("--grow-batch", default=None, hidden=True, expose_value=False, callback=_refuse_growth)
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
    help="Also write temporary snapshots; the last two stay until the training has ended well.",
)
@click.option("--gpus", "gpu_count", default="", metavar="N", help="Train with N workers, each on a GPU of its own.")
@with_flags("launching", LaunchFlags, WORKERS)
@with_flags("sharing", SharingFlags, WORKERS)
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
    check_output(report, PAGE, flags.solver)
    check_output(trace, TRACE, report)
    gpus = TrainingGpus(flags.gpu, gpu_count)
    gpus.check()
    require_inputs(*flags.weights.split(","), flags.snapshot if flags.snapshot != AUTO else "")
    if not snapshot_every >= 0:
        raise UsageError(f"--snapshot-every must be 0 or more seconds, not {snapshot_every:g}")
    sharing.check()
    signals = Signals(flags.sigint_effect, flags.sighup_effect)
    nodes = launching.on_nodes(restarts)
    if nodes is None:
        return 0
    world = World() if nodes.hosts and not launching.hosts else join(launching.timeout)

    batch = sys.maxsize  # the largest of a layer, once the solver is read

    def with_all(workers: int) -> SharingFlags:
        whole = {"--elastic": launching.elastic, "--report": report}  # the rest of a job, or worker 0, has all weights
        return sharing.with_batch_of(gpus, workers).with_parallel(solving.rng, whole)

    def check(workers: int) -> None:
        given = with_all(workers)
        given.check_reproducible(solving.rng, workers, bool(gpus))
        given.check_batch(batch, workers)

    def fits(workers: int) -> bool:
        try:
            check(workers)
        except UsageError:
            return False
        return True

    if world.size == 1 and world.order is None and (plan := nodes.plan(restarts, gpus, fits)):
        param = read_solver(flags.solver)
        batch = _largest_batch(_configure(param, flags))
        check(plan.elastic.least if plan.elastic else plan.workers)
        return _launch(plan, param, flags, signals)
    with world:
        if world.order is None:
            launching.check(world, restarts)
        signals.save_every = snapshot_every if world.rank == 0 else 0.0
        check_same_flags(world)
        param = _solver_param(flags, world)
        gpu = gpus.take(param, world, on_cpu=bool(engines.engine))
        sharing = with_all(world.size)
        sharing.check_reproducible(solving.rng, world.size, gpu is not None)
        engine = _create_engine(gpu, solving.rng, world, engines)
        timing = Timing(trace, world)
        options = sharing.for_solver(world, timing.timeline, engine.xp)
        if solving.scale_lr:
            _scale_rate(param, solving.scale_lr, options.get("workers", Workers()))
        solver = Solver(
            param,
            engine,
            solving.rng,
            timeline=timing.timeline,
            recompute=solving.recompute,
            on_nan=solving.on_nan,
            keep_best=solving.keep_best,
            patience=solving.patience,
            requested_action=signals.requested,
            job=world.order["job"] if world.order else 0,
            **options,
        )
        _tell_sharing(solver, sharing, world)
        solver.observers.append(Heartbeat(solver, world.watchdog))
        try:
            _restore(solver, flags)
            with signals, progress_of(solver), recorded(solver, flags.solver, report, tensorboard):
                log.starting_optimization()
                with timing.of(solver):
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


def _launch(plan: Plan, param: Any, flags: Flags, signals: Signals) -> int:
    """Start the ranks of a plan, which get this solver; returns the job's exit code."""
    from fcaffe.jobs.launch import launch

    solver, job = base64.b64encode(param.SerializeToString()).decode(), new_number()

    def order(path: str | None) -> dict[str, Any]:
        given = order_of_command(solver=solver, job=job)
        given["params"] |= {"snapshot": path, "weights": ""} if path else {}
        return given

    code = launch(plan, order, signals.stopping(), StatesOfJob(param.snapshot_prefix, flags.snapshot, job))
    # The log's last line must stay the one that names a dead rank.
    remove_leftovers(f"{param.snapshot_prefix}_", tell=False)
    return code


class StatesOfJob(Snapshots):
    """The states under a prefix, of which this job's ranks write some; `given` is its --snapshot."""

    def __init__(self, prefix: str, given: str, job: int) -> None:
        self.prefix, self.given, self.job = prefix, given, job

    def newest(self) -> str | None:
        return newest(self.prefix, check_whole, self.job, tell=False)

    def _of_all(self) -> str | None:
        return newest(self.prefix, check_whole, tell=False)

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


def _largest_batch(param: Any) -> int:
    """The largest batch that a layer of the training net reads: workers share out that one, if it suffices for them."""
    from fcaffe.net.build.filter import filter_net
    from fcaffe.solvers.nets import train_net_param
    from fcaffe.tools.shapes import READERS, reader_of

    with log.quiet(3):  # each rank tells about its nets
        layers = filter_net(train_net_param(param)[0], to_run=False).layer
    return max((reader_of(one).batch_size for one in layers if one.type in READERS), default=sys.maxsize)


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


EFFECTS = {"stop": Action.STOP, "snapshot": Action.SNAPSHOT, "none": Action.NONE}


class Signals:
    """Within a `with`, signal handlers only record what was asked for; the training loop calls `requested`.

    Batch systems send SIGTERM some time before they kill. A temporary snapshot is asked for every `save_every` seconds,
    unless that is 0.
    """

    def __init__(self, sigint_effect: str, sighup_effect: str) -> None:
        self._effects = {signal.SIGTERM: Action.TERMINATE}
        for name, effect in (("sigint", sigint_effect), ("sighup", sighup_effect)):
            if effect not in EFFECTS:
                problem = f'Invalid signal effect "{effect}" was specified'
                raise UsageError(f"{problem}; give --{name}_effect one of {', '.join(EFFECTS)}")
            if hasattr(signal, name.upper()):  # Windows has no SIGHUP
                self._effects[signal.Signals[name.upper()]] = EFFECTS[effect]
        self._noted: deque[Action] = deque()  # appending is atomic, whenever a signal arrives
        self._before: dict[signal.Signals, Any] = {}
        self.terminated = False
        self.save_every = 0.0
        self._saved = time.monotonic()

    def requested(self) -> Action:
        """Return the most urgent effect of the signals since the last call."""
        action = Action.NONE
        if self.save_every and time.monotonic() > self._saved + self.save_every:
            self._saved, action = time.monotonic(), Action.SAVE
        while self._noted:
            action = max(action, self._noted.popleft())
        self.terminated |= action is Action.TERMINATE
        return action

    def stopping(self) -> list[signal.Signals]:
        """Return the signals that end a training."""
        return [number for number, action in self._effects.items() if action in (Action.STOP, Action.TERMINATE)]

    def __enter__(self) -> Signals:
        def note(number: int, frame: FrameType | None) -> None:
            self._noted.append(self._effects[signal.Signals(number)])

        self._before = {number: signal.signal(number, note) for number in self._effects}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
