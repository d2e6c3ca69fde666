"""`fcaffe bench step`: measures whole training iterations between live ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from typing import Any

from fcaffe import (
    log,
    pycaffe,  # noqa: F401 - it registers the types of layers
)
from fcaffe.cli.heartbeat import Heartbeat
from fcaffe.cli.table import print_table
from fcaffe.cli.workers import SharingFlags
from fcaffe.engines import Engine, cpu_engine
from fcaffe.errors import UsageError
from fcaffe.parallel.world import World
from fcaffe.solvers import Solver
from fcaffe.timeline import BACKWARD, DATA, FORWARD, KINDS, REDUCE, UPDATE, WAIT, Timeline
from fcaffe.tools.step_bench import Training, take_turns

SHOWN = (DATA, FORWARD, BACKWARD, REDUCE, WAIT, UPDATE)
COLUMNS = ("variant", "ms", "images/s", *SHOWN, "other", "sums in all", "hidden")
SHARING = SharingFlags("global", "auto", "", None, True, None, 0)


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
        found[", ".join(filter(None, words))] = SharingFlags("global", name, compress, bucket, overlap, None, 0)
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
