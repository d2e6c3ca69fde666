"""`fcaffe bench`: measures the reductions, or whole training iterations, between live ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import median
from typing import Any

import click
import numpy as np

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.cli.engine import find_devices
from fcaffe.cli.flags import WORKERS, command, numbers, numbers_of_shape, with_flags
from fcaffe.cli.progress import Heartbeat
from fcaffe.cli.table import print_table
from fcaffe.cli.workers import HostFlags, LaunchFlags, SharingFlags, order_of_command
from fcaffe.engines import Engine, cpu_engine
from fcaffe.engines.cuda import libraries
from fcaffe.errors import NetError, UsageError
from fcaffe.jobs.launch import launch
from fcaffe.jobs.started import host_name
from fcaffe.jobs.world import World, join
from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.parallel.watchdog import Watchdog
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers import Solver
from fcaffe.threads import available_cpus
from fcaffe.timeline import BACKWARD, DATA, FORWARD, KINDS, OTHER, REDUCE, UPDATE, WAIT, Timeline
from fcaffe.tools.nets import read_training
from fcaffe.tools.shapes import READERS, reader_of, replace_reader

REDUCE_COLUMNS = ("reduction", "ranks", "hosts", "bytes", "ms", "busbw GB/s", "messages", "bytes sent")
GRADIENTS = "4000,4000000,53000000"  # bytes; the last are GoogLeNet's, in the paper's measurement

TURN, MOST = 0.25, 50  # seconds of a turn, and the most iterations
# At this rate no net fits its one batch, whose gradients would become denormal numbers, or diverges: both change speed.
RATE = 1e-9
SHOWN = (DATA, FORWARD, BACKWARD, REDUCE, WAIT, UPDATE)
STEP_COLUMNS = ("variant", "ms", "images/s", *SHOWN, "other", "sums in all", "hidden")
SHARING = SharingFlags(batch="global")


@command(
    example="bench reduce --workers 2,4",
    help="Measure between live ranks, which it starts (--workers) or which mpiexec or srun has started. "
    "bench reduce: how long the reductions take to sum gradients, as training asks them to. Messages and bytes are "
    "those of the busiest rank; the bus bandwidth is nccl-tests'. bench step: whole iterations of the training of "
    "--net or --solver, split by kinds of time, on average over the ranks. Each round measures every variant once; "
    "the table has medians.",
)
@click.argument("what", metavar="reduce|step", type=click.Choice(["reduce", "step"]))
@click.option(
    "--reduce", "names", default="", metavar="NAME,...", help="Reductions (all that fit the hosts; step: auto)."
)
@click.option("--bytes", "sizes", default=GRADIENTS, metavar="N,...", help=f"reduce: bytes to sum ({GRADIENTS}).")
@click.option(
    "--workers",
    default="",
    metavar="N,...",
    help="Numbers of ranks, of which step takes one (all that there are, or one for a CPU).",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    help="reduce: where the gradients lie: in the memory of the host, or on GPUs, of which each rank takes one (cpu).",
)
@click.option("--net", default="", metavar="FILE", help="step: train this net, with SGD.")
@click.option("--solver", default="", metavar="FILE", help="step: train as this solver does.")
@click.option(
    "--data",
    type=click.Choice(["synthetic", "real"]),
    default="synthetic",
    help="step: a batch in memory, or what the net's data layers read (synthetic).",
)
@click.option("--batch-size", default=0, metavar="N", help="step: samples of all workers (the net's batch_size).")
@click.option("--input-shape", default="", metavar="C,H,W", help="step: of a record, where the net does not tell.")
@click.option("--bucket-mb", "buckets", default="", metavar="MB,...", help="step: sizes of buckets (as train's).")
@click.option(
    "--compress",
    multiple=True,
    metavar="NAME",
    help="step: compare sums of compressed gradients (as train's), too; may be given several times.",
)
@click.option("--no-overlap", is_flag=True, help="step: compare each without overlap, too.")
@click.option("--rounds", default=7, metavar="N", help="step: rounds in which each variant has its turn (7).")
@click.option("--iterations", default=0, metavar="N", help="step: of a turn (as many as take a quarter of a second).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_flags("hosts", HostFlags, WORKERS)
def bench(what: str, names: str, workers: str, as_json: bool, hosts: HostFlags, **more: Any) -> int:
    counts = numbers("--workers", workers)
    chosen = [name for name in names.split(",") if name]
    run = _reduce(counts, chosen, as_json, **more) if what == "reduce" else _step(counts, chosen, as_json, **more)
    world, launching, plan = join(hosts.timeout), LaunchFlags(**vars(hosts)), None
    with world:
        if world.order is None:
            alone = not (hosts.hosts or hosts.hostfile)
            most = max(counts, default=max(available_cpus(), 2) if alone else 0)
            plan = replace(launching, workers=most).plan() if world.size == 1 else None
            launching.check(world, plan)
        if plan is None:
            run(world)
    return launch(plan, lambda path: order_of_command()) if plan is not None else 0


def _reduce(counts: list[int], names: list[str], as_json: bool, **flags: Any) -> Callable[[World], None]:
    """Check the flags, and return the function that measures reductions. Raises UsageError."""
    sizes = numbers("--bytes", flags["sizes"])
    if any(number % 4 for number in sizes):
        raise UsageError(f"--bytes {flags['sizes']}: gradients have 4 bytes each, so give multiples of 4")

    def run(world: World) -> None:
        try:
            from mpi4py import MPI

            from fcaffe.tools.bench_reduce import measure
        except ImportError as problem:
            raise UsageError("The reductions need MPI: pip install mpi4py mpich") from problem
        comm = world.comm or MPI.COMM_SELF
        if max(counts, default=1) > comm.size:
            raise UsageError(f"--workers {max(counts)}, but there are only {comm.size} ranks")
        xp = _cupy(world) if flags["device"] == "gpu" else np
        results = measure(comm, names, sizes, counts or [comm.size], world.watchdog.beat, xp)
        if world.rank == 0 and as_json:
            print(json.dumps([result._asdict() for result in results], indent=2))
        elif world.rank == 0:
            print_table(
                "Sums of gradients", REDUCE_COLUMNS, [_reduce_row(result) for result in results], numbers_from=1
            )

    return run


def _reduce_row(result: Any) -> tuple[str, ...]:
    whole = ("" if number is None else f"{number:,}" for number in (result.messages, result.bytes_sent))
    sizes = (f"{number:,}" for number in (result.ranks, result.hosts, result.bytes))
    return (result.reduction, *sizes, f"{1e3 * result.seconds:.3f}", f"{result.busbw:.2f}", *whole)


def _step(counts: list[int], names: list[str], as_json: bool, **flags: Any) -> Callable[[World], None]:
    """Check the flags, and return the function that measures whole iterations. Raises UsageError."""
    if bool(flags["net"]) == bool(flags["solver"]):
        raise UsageError("bench step needs what to train: give --net FILE or --solver FILE")
    if len(counts) > 1:
        raise UsageError("bench step takes one number of --workers")
    buckets = numbers("--bucket-mb", flags["buckets"], 0, float)
    shape = numbers_of_shape(flags["input_shape"])

    if flags["rounds"] < 1 or flags["iterations"] < 0:
        raise UsageError("--rounds must be 1 or more, and --iterations 0 or more")
    synthetic, path = flags["data"] == "synthetic", flags["solver"] or flags["net"]
    source = "synthetic data in memory" if synthetic else "the net's own data"

    def run(world: World) -> None:
        if counts and counts != [world.size]:
            raise UsageError(f"--workers {counts[0]}, but there are {world.size} ranks: leave the flag out there")
        param = steps_only(path, bool(flags["solver"]), synthetic, flags["batch_size"], shape)
        compared = variants(names or ["auto"], flags["compress"], buckets, flags["no_overlap"])
        engine = cpu_engine()
        trainings = []
        for name, sharing in compared.items():
            world.watchdog.beat(f"building the training with {name}")
            with log.quiet():
                trainings.append(training(name, param, world, engine, sharing))
        log.info(f"Measuring iterations of {'; '.join(compared)} in {flags['rounds']} rounds, on {world}")
        take_turns(trainings, flags["rounds"], flags["iterations"])
        results = [each.result() for each in trainings]
        for each in trainings:
            each.solver.close()
            each.solver.leave_workers()
        if world.rank == 0 and as_json:
            print(json.dumps({"source": source, "hosts": len(set(world.hosts)), "results": results}, indent=2))
        elif world.rank == 0:
            title = f"Milliseconds an iteration: {results[0]['batch']} samples of {source}, {world.size} workers"
            print_table(title, STEP_COLUMNS, [_step_row(result) for result in results], numbers_from=1)

    return run


def _step_row(result: dict[str, Any]) -> tuple[str, ...]:
    split = result["split_ms"]
    other = sum(split.get(kind, 0.0) for kind in KINDS if kind not in SHOWN)
    times = [*(split.get(kind, 0.0) for kind in SHOWN), other, result["sums_ms"], result["hidden_ms"]]
    numbers = f"{result['ms']:.2f}", f"{result['images_per_second']:,.0f}"
    return (result["name"], *numbers, *(f"{ms:.2f}" for ms in times))


def _cupy(world: World) -> Any:
    """CuPy, with a GPU of this host made current; if there are more ranks than GPUs, several share one. Raises
    UsageError."""
    devices = find_devices()
    if not devices.count:
        raise UsageError(f"--device gpu: {host_name()} has {devices}")
    number = world.local_rank % devices.count
    cupy, _ = libraries.load(number)
    cupy.cuda.Device(number).use()
    cupy.cuda.Stream(non_blocking=True).__enter__()  # for good, as CudaEngine.make_current
    return cupy


@dataclass
class Training:
    """A training to measure. All calls are collective."""

    name: str
    solver: Solver
    watchdog: Watchdog = field(default_factory=Watchdog)
    turns: list[dict[str, float]] = field(default_factory=list)

    def take(self, iterations: int) -> dict[str, float]:
        """Run this many iterations, the same number on all ranks, after one that loads the caches.

        Returns mean seconds of an iteration: "seconds" of the slowest worker; the mean of all workers of each kind of
        the timeline, which add up to the whole; "sums" of worker 0's gradients, and "exposed", the part of these that
        the training waited for. The rest was hidden behind forward and backward.
        """
        solver, workers = self.solver, self.solver.workers
        self.watchdog.beat(f"measuring {self.name}", solver.iteration)
        solver.step(1)
        workers.sum(0.0)  # all begin together
        timeline, exchange = solver.timeline, solver.exchange
        sums, exposed = exchange.seconds, exchange.exposed
        timeline.begin()
        began = time.perf_counter()
        with timeline.span(OTHER):
            solver.step(iterations)
        own = {"seconds": time.perf_counter() - began, **timeline.seconds}
        own |= {"sums": exchange.seconds - sums, "exposed": exchange.exposed - exposed}
        everyone = workers.broadcast_object(workers.gather(own))
        taken = {kind: sum(one[kind] for one in everyone) / len(everyone) for kind in KINDS}
        taken |= {"sums": everyone[0]["sums"], "exposed": everyone[0]["exposed"]}
        taken["seconds"] = max(one["seconds"] for one in everyone)
        return {name: value / iterations for name, value in taken.items()}

    def result(self) -> dict[str, Any]:
        """Medians over the turns, in milliseconds an iteration. `split_ms` has kinds of time, `least_ms` the shortest
        turn, which other load of the machine affected least."""
        solver = self.solver
        samples = solver.share.total * solver.passes  # of one iteration on all workers
        ms = {name: 1000 * median(turn[name] for turn in self.turns) for name in self.turns[0]}
        return {
            "name": self.name,
            "workers": solver.workers.size,
            "batch": samples,
            "ms": ms["seconds"],
            "least_ms": 1000 * min(turn["seconds"] for turn in self.turns),
            "images_per_second": 1000 * samples / ms["seconds"],
            "split_ms": {kind: ms[kind] for kind in KINDS if ms[kind]},
            "sums_ms": ms["sums"],
            "hidden_ms": max(0.0, ms["sums"] - ms["exposed"]),
            "gradient_bytes": 4 * int(solver.net.parameters.exchanged),
            "bucket_bytes": list(getattr(solver.exchange, "cut", [])),
        }


def take_turns(trainings: Sequence[Training], rounds: int, iterations: int = 0) -> None:
    """Measure the trainings alternately, so that other load of the machine affects all alike. Collective.

    In each round every training takes so many iterations; with 0, as many as take about a quarter of a second.
    """
    counts = [iterations or max(1, min(MOST, round(TURN / one.take(1)["seconds"]))) for one in trainings]
    for _ in range(rounds):
        for training, count in zip(trainings, counts, strict=True):
            training.turns.append(training.take(count))


def training(name: str, param: Any, world: World, engine: Engine, sharing: SharingFlags = SHARING) -> Training:
    """The training that `fcaffe train` runs with these flags. Collective."""
    timeline = Timeline()
    options = sharing.for_solver(world, timeline, engine.xp)
    solver = Solver(param, engine, "counter", timeline=timeline, on_nan="stop", **options)
    solver.observers.append(Heartbeat(solver, world.watchdog))
    return Training(name, solver, world.watchdog)


def variants(
    reductions: Sequence[str], compressions: Sequence[str], buckets: Sequence[float], no_overlap: bool
) -> dict[str, SharingFlags]:
    """The flags of each variant, by its name: every reduction and compression, with every bucket size in MB.

    With `no_overlap` there is each variant without overlap, too.
    """
    sums = [(name, "") for name in reductions] + [("auto", name) for name in compressions]
    found = {}
    sizes: Sequence[float | None] = buckets or [None]
    for (name, compress), bucket, overlap in product(sums, sizes, (True, False)[: 1 + no_overlap]):
        words = [compress or name, f"{bucket:g} MB" if bucket else "", "" if overlap else "no overlap"]
        found[", ".join(filter(None, words))] = SharingFlags("global", name, compress, bucket, overlap)
    return found


@register("SyntheticBatch", of_tool=True)
class SyntheticBatch(Layer):
    """The first top: normal random numbers of standard deviation 1, each worker's share of a batch; the others: class
    numbers 0 and 1. input_param has the shapes for the whole batch. Each pass writes the same batch into the tops."""

    traits = Traits(bottoms=0, tops=(1, None), reads_host=True)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        shapes = [tuple(shape.dim) for shape in self.param.input_param.shape]
        self.share, placement = self.context.share_of(shapes[0][0])
        random = np.random.default_rng(self.share.first)
        self._values: list[np.ndarray] = []
        for blob, (_, *rest) in zip(top, shapes, strict=True):
            shape = (self.share.count, *rest)
            drawn = random.integers(0, 2, shape) if self._values else random.standard_normal(shape, np.float32)
            self._values.append(drawn.astype(np.float32))
            blob.reshape(*shape)
            blob.placement = placement

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        rows = self.context.workers.rows(self.share)
        with self.context.timeline.span(DATA):
            for blob, values in zip(top, self._values, strict=True):
                blob.reshape(rows.stop - rows.start, *values.shape[1:])
                self.engine.upload(values[rows], blob.data).wait()


def steps_only(
    path: str, is_solver: bool, synthetic: bool = True, batch_size: int = 0, input_shape: Sequence[int] | None = None
) -> Any:
    """The parameters of a solver that trains as the solver at `path` does, or that net with SGD, and does nothing else:
    no tests, snapshots or display. Its rate is so low that the weights stay.

    `synthetic`: layers that read files give way to batches in memory, of the record's shape (see `hollow_net`).
    `batch_size`: of the batch of all workers, if it is not to be the net's. Raises FcaffeError.
    """
    given, net, file = read_training(path, is_solver)
    param = pb.SolverParameter()
    for name in ("type", "momentum", "momentum2", "delta", "rms_decay", "weight_decay", "regularization_type",
                 "iter_size", "clip_gradients"):  # fmt: skip
        if given.HasField(name):
            setattr(param, name, getattr(given, name))
    readers = [layer for layer in net.layer if layer.type in READERS]
    if batch_size < 0:
        raise UsageError(f"the size of a batch must be positive, not {batch_size}")
    if batch_size and not readers:
        raise NetError(f"{file}: no layer reads batches, so the size of a batch cannot be set")
    for layer in readers:
        if batch_size:
            reader_of(layer).batch_size = batch_size
        if synthetic:
            source = reader_of(layer).source
            shape, origin = replace_reader(layer, "SyntheticBatch", file, input_shape)
            size = " x ".join(map(str, shape))
            log.info(
                f'Layer "{layer.name}": synthetic batches of {size} in memory ({origin}), instead of '
                f"{source or 'a data set'}"
            )
    param.net_param.CopyFrom(net)
    param.base_lr, param.lr_policy, param.random_seed, param.snapshot_after_train = RATE, "fixed", 1, False
    return param
