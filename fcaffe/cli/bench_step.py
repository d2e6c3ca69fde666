"""`fcaffe bench step`: measures whole training iterations between live ranks, also on synthetic batches in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.cli.progress import Heartbeat
from fcaffe.cli.table import print_table
from fcaffe.cli.workers import SharingFlags
from fcaffe.engines import Engine, cpu_engine
from fcaffe.errors import NetError, UsageError
from fcaffe.jobs.world import World
from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.parallel.watchdog import Watchdog
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers import Solver
from fcaffe.timeline import BACKWARD, DATA, FORWARD, KINDS, OTHER, REDUCE, UPDATE, WAIT, Timeline
from fcaffe.tools.nets import read_training
from fcaffe.tools.shapes import READERS, reader_of, replace_reader

TURN, MOST = 0.25, 50  # seconds of a turn, and the most iterations
# At this rate no net fits its one batch, whose gradients would become denormal numbers, or diverges: both change speed.
RATE = 1e-9
SHOWN = (DATA, FORWARD, BACKWARD, REDUCE, WAIT, UPDATE)
COLUMNS = ("variant", "ms", "images/s", *SHOWN, "other", "sums in all", "hidden")
SHARING = SharingFlags(batch="global")


class Turn(NamedTuple):
    """The mean seconds of some iterations.

    `seconds` is the time of the slowest worker. `split` is the mean of all workers by the kinds of the timeline, which
    add up to the whole. `sums` is what worker 0's sums of gradients took, and `exposed` the part that the training
    waited for; the rest was hidden behind forward and backward.
    """

    seconds: float
    split: dict[str, float]
    sums: float
    exposed: float


@dataclass
class Training:
    """A training to measure. All calls are collective."""

    name: str
    solver: Solver
    watchdog: Watchdog = field(default_factory=Watchdog)
    turns: list[Turn] = field(default_factory=list)

    def take(self, iterations: int) -> Turn:
        """Run this many iterations, after one that loads the caches. `iterations` is the same on all ranks."""
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
        own = [time.perf_counter() - began, *(timeline.seconds[kind] for kind in KINDS)]
        own += [exchange.seconds - sums, exchange.exposed - exposed]
        everyone = np.array(workers.broadcast_object(workers.gather(own))) / iterations
        split = dict(zip(KINDS, everyone[:, 1:-2].mean(axis=0).tolist(), strict=True))
        return Turn(float(everyone[:, 0].max()), split, *everyone[0, -2:].tolist())

    @property
    def samples(self) -> int:
        """Samples of one iteration on all workers."""
        return self.solver.share.total * self.solver.passes

    def result(self) -> dict[str, Any]:
        """Medians over the turns, in milliseconds an iteration. `split_ms` has kinds of time, `least_ms` the shortest
        turn, which other load of the machine affected least."""
        workers, exchange = self.solver.workers, self.solver.exchange
        ms = 1000 * median(turn.seconds for turn in self.turns)
        split = {kind: 1000 * median(turn.split[kind] for turn in self.turns) for kind in KINDS}
        sums = 1000 * median(turn.sums for turn in self.turns)
        exposed = 1000 * median(turn.exposed for turn in self.turns)
        return {
            "name": self.name,
            "workers": workers.size,
            "batch": self.samples,
            "ms": ms,
            "least_ms": 1000 * min(turn.seconds for turn in self.turns),
            "images_per_second": 1000 * self.samples / ms,
            "split_ms": {kind: value for kind, value in split.items() if value},
            "sums_ms": sums,
            "hidden_ms": max(0.0, sums - exposed),
            "gradient_bytes": 4 * int(self.solver.net.parameters.exchanged),
            "bucket_bytes": list(getattr(exchange, "cut", [])),
        }


def turn_length(training: Training) -> int:
    """The number of iterations that take about a quarter of a second. Collective."""
    return max(1, min(MOST, round(TURN / training.take(1).seconds)))


def take_turns(trainings: Sequence[Training], rounds: int, iterations: int = 0) -> None:
    """Measure the trainings alternately, so that other load of the machine affects all alike. Collective.

    Args:
        trainings: The trainings.
        rounds: Number of turns of each training.
        iterations: Iterations of a turn; 0 for as many as take about a quarter of a second.
    """
    counts = [iterations or turn_length(training) for training in trainings]
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
    """The flags of each variant, by its name: every reduction and compression, with every bucket size.

    Args:
        reductions: Names of reductions.
        compressions: Compression schemes, as `--compress` takes them.
        buckets: Bucket sizes in MB; empty for those of a training.
        no_overlap: Whether to add each variant without overlap.
    """
    sums = [(name, "") for name in reductions] + [("auto", name) for name in compressions]
    found = {}
    sizes: Sequence[float | None] = buckets or [None]
    for (name, compress), bucket, overlap in product(sums, sizes, (True, False)[: 1 + no_overlap]):
        words = [compress or name, f"{bucket:g} MB" if bucket else "", "" if overlap else "no overlap"]
        found[", ".join(filter(None, words))] = SharingFlags("global", name, compress, bucket, overlap)
    return found


def bench_step(
    world: World,
    param: Any,
    compared: dict[str, SharingFlags],
    rounds: int,
    iterations: int,
    source: str,
    as_json: bool,
) -> None:
    """Measure the variants and print the table. `param` describes a solver that only steps. Collective."""
    if rounds < 1 or iterations < 0:
        raise UsageError("--rounds must be 1 or more, and --iterations 0 or more")
    engine = cpu_engine()
    trainings = []
    for name, sharing in compared.items():
        world.watchdog.beat(f"building the training with {name}")
        with log.quiet():
            trainings.append(training(name, param, world, engine, sharing))
    log.info(f"Measuring iterations of {'; '.join(compared)} in {rounds} rounds, on {world}")
    take_turns(trainings, rounds, iterations)
    results = [each.result() for each in trainings]
    for each in trainings:
        each.solver.close()
        each.solver.leave_workers()
    if world.rank > 0:
        return
    if as_json:
        print(json.dumps({"source": source, "hosts": len(set(world.hosts)), "results": results}, indent=2))
        return
    title = f"Milliseconds an iteration: {results[0]['batch']} samples of {source}, {world.size} workers"
    print_table(title, COLUMNS, [_row(result) for result in results], numbers_from=1)


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    split = result["split_ms"]
    other = sum(split.get(kind, 0.0) for kind in KINDS if kind not in SHOWN)
    times = [*(split.get(kind, 0.0) for kind in SHOWN), other, result["sums_ms"], result["hidden_ms"]]
    numbers = f"{result['ms']:.2f}", f"{result['images_per_second']:,.0f}"
    return (result["name"], *numbers, *(f"{ms:.2f}" for ms in times))


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
    path: str,
    is_solver: bool,
    synthetic: bool = True,
    batch_size: int = 0,
    input_shape: Sequence[int] | None = None,
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
