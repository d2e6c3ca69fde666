"""`fcaffe plan`: what more workers would buy. With --calibrate it measures this machine into a file."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np

from fcaffe import log
from fcaffe.cli.bench import steps_only, take_turns, training
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import command, numbers, numbers_of_shape
from fcaffe.cli.table import print_table, say
from fcaffe.engines import Engine
from fcaffe.engines.memory import obtainable_bytes
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.jobs.world import World, join
from fcaffe.plan.explain import explain
from fcaffe.plan.machine import (
    FCAFFE,
    LINKS,
    MACHINE,
    MACHINES,
    Device,
    Link,
    Machine,
    find,
    read_machine,
    write_machine,
)
from fcaffe.plan.prediction import Prediction, Row
from fcaffe.plan.reductions import REDUCTIONS
from fcaffe.plan.work import Work, work_of_net
from fcaffe.threads import available_cpus, ranks_on_host
from fcaffe.tools.profile import gemm_gflops, memory_gbytes

TURNS = 7  # whose median counts
SHORT, LONG = 64, 8 << 20  # bytes of the sums that tell a link's latency and bandwidth
RANKS = 1 << 10  # of a host: CPUs take any number
ACCESSES = 3  # of memory, for each byte that is added to another

MOST_WORKERS = 10_000_000
WORKERS = "1,2,4,8,16,32,64,128"
EACH = "per-worker"
COLUMNS = "workers reduce ms/iteration compute exposed data update speedup efficiency images/s hours GB/worker fits"


@command(
    example="plan --net train_val.prototxt --batch 1024 --machine h200 --workers 1,8,64",
    help="Predict what a training takes on several workers: seconds of an iteration by parts, speedup, time of the "
    "training, the best reduction, where communication takes over, memory. The net's data sets need not exist.",
)
@click.option("--solver", default="", metavar="FILE", help="Solver prototxt, whose net is planned for.")
@click.option("--net", "--model", "net", default="", metavar="FILE", help="Net prototxt, instead of a solver.")
@click.option(
    "--batch",
    default="",
    metavar="N",
    help="Batch of all workers, which they split (the prototxt's); per-worker: each takes a whole one, per-worker:N "
    "one of N.",
)
@click.option("--workers", default=WORKERS, metavar="N,...", help=f"Numbers of workers ({WORKERS}).")
@click.option("--machine", default="", metavar="NAME|FILE", help="Machine: titan, h200, ..., or a JSON file.")
@click.option(
    "--reduce", "names", default="best", metavar="NAME,...", help="Reductions; all: those compared (best: the fastest)."
)
@click.option("--no-overlap", "overlap", flag_value=False, default=True, help="Sums begin when backward is through.")
@click.option(
    "--parallel", default="data", type=click.Choice(["data", "hybrid"]), help="As --parallel of train (data)."
)
@click.option("--bucket-mb", type=float, metavar="X", help="Size of buckets (fcaffe's rule).")
@click.option("--epochs", type=float, metavar="X", help="Epochs of the training, of --images.")
@click.option("--images", type=int, metavar="N", help="Images of the training set.")
@click.option("--input-shape", default="", metavar="C,H,W", help="Shape of the records of a data set that is missing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--explain", "explained", is_flag=True, help="Show formula, inputs and their sources for each number.")
@click.option("--calibrate", is_flag=True, help="Measure this machine, and its links if started under several ranks.")
@click.option("--out", default=MACHINE, metavar="FILE", help=f"With --calibrate: the file ({MACHINE}).")
@engine_flags
def plan(engines: EngineFlags, **flags: Any) -> int:
    counts = numbers("--workers", flags["workers"]) or [1]
    if max(counts) > MOST_WORKERS:
        raise UsageError(f"--workers takes numbers up to {MOST_WORKERS:,}, not '{flags['workers']}'")
    if flags["calibrate"]:
        return _calibrate(engines, flags)
    if not flags["machine"]:
        raise UsageError(
            f"plan needs a machine: --machine {'|'.join(MACHINES)}, or --machine FILE (docs/firecaffe.md; --calibrate "
            "writes one for this machine)"
        )
    machine = read_machine(flags["machine"])
    machine.device.peak_of(engines.math)  # refuses a type that the device has no speed for
    known = {name: name for name in (*REDUCTIONS, "best", "all")}
    reductions = [find(name, known, "reduction") for name in flags["names"].split(",")]
    work = _work(flags)
    size, per_worker = _batch_of(flags["batch"], work)
    if per_worker and flags["parallel"] == "hybrid":
        raise UsageError("--parallel hybrid does not go with --batch per-worker: leave one of them out")
    if not per_worker and max(counts) > size:
        log.warning(
            f"{max(counts)} workers for a batch of {size} images: some have none, which `fcaffe train` refuses; "
            "--batch per-worker gives each a whole one"
        )
    prediction = Prediction(work, machine, size, per_worker, engines.math, **_settings(flags))
    rows = prediction.rows(counts, reductions)
    if flags["as_json"]:
        print(json.dumps([_row_to_json(prediction, row, flags["explained"]) for row in rows], indent=2))
        return 0
    images = f"{size:,} images {'a worker' if per_worker else 'in all'}"
    title = f"{work.name or work.path}, {images}, on {machine.name} ({machine.device.name}, {engines.math})"
    print_table(title, COLUMNS.split(), [_cells(prediction, row) for row in rows], numbers_from=2)
    found = {name: prediction.crossover(name) for name in ("server", "tree", "ring", "halving")}
    parts = (f"{name} {'never' if workers is None else f'{workers:,}'}" for name, workers in found.items())
    say(f"Communication, hidden or not, takes longer than computing from so many workers on: {', '.join(parts)}")
    for row in rows if flags["explained"] else ():
        print()
        say(f"{row.workers:,} workers, {row.reduce}")
        facts = explain(prediction, row)
        width, values = max(len(fact.name) for fact in facts), max(len(fact.value) for fact in facts)
        for fact in facts:
            say(f"  {fact.name:<{width}}  {fact.value:<{values}}  {fact.by}")
    return 0


def _settings(flags: dict[str, Any]) -> dict[str, Any]:
    """The other fields of the prediction. Raises UsageError."""
    for name in ("bucket_mb", "epochs", "images"):
        if flags[name] is not None and not 0 < flags[name] < math.inf:
            raise UsageError(f"--{name.replace('_', '-')} must be above 0, not {flags[name]:g}")
    if (flags["epochs"] is None) != (flags["images"] is None):
        raise UsageError("--epochs and --images belong together: epochs of how many images, or how often")
    bucket = None if flags["bucket_mb"] is None else flags["bucket_mb"] * (1 << 20)
    return {"bucket": bucket, "hybrid": flags["parallel"] == "hybrid"} | {
        name: flags[name] for name in ("overlap", "epochs", "images")
    }


def _work(flags: dict[str, Any]) -> Work:
    solver, net, shape = flags["solver"], flags["net"], numbers_of_shape(flags["input_shape"])
    if bool(solver) == bool(net):
        raise UsageError("plan needs the prototxt of a solver or of a net: --solver FILE or --net FILE")
    return work_of_net(solver or net, shape, bool(solver))


def _calibrate(engines: EngineFlags, flags: dict[str, Any]) -> int:
    """Measure this machine, on all ranks at once if there are several, and write or complete the file --out.

    With a net, its speed of training is measured as well.
    """
    path, out, shape = flags["solver"] or flags["net"], flags["out"], numbers_of_shape(flags["input_shape"])
    work = _work(flags) if path else None
    if work is not None:
        size = _batch_of(flags["batch"], work)[0] if flags["batch"] else 0
        try:
            param = steps_only(path, bool(flags["solver"]), True, size, shape)
        except FcaffeError:  # the shape of records is known by reading them alone
            param = steps_only(path, bool(flags["solver"]), False, size, shape)
    old = read_machine(out) if os.path.isfile(out) and os.path.getsize(out) else None
    with join() as world:
        cores = available_cpus()
        if world.local_size > 1:  # each rank may be bound to a part of the host's cores
            sets = world.comm.allgather((world.hosts[world.rank], sorted(os.sched_getaffinity(0))))
            cores = max(cores, len({core for host, own in sets if host == world.hosts[world.rank] for core in own}))
        machine = measure_machine(engines.create(), platform.machine() or "CPU", cores, ranks_on_host())
        if work is not None:
            world.watchdog.beat(f"measuring trainings of {work.name}")
            engine = engines.create()
            log.info(f"Measuring trainings of {work.name}")
            with log.quiet():
                alone = training(work.name, param, World(), engine)  # as `fcaffe bench step` measures it
                with contextlib.closing(alone.solver):
                    take_turns([alone], TURNS)
            speed = alone.result()["images_per_second"] * machine.slowdown(ranks_on_host())
            machine = replace(machine, speeds={work.name: speed})
        if world.comm is not None:
            machine = measure_links(machine, world.comm, world.hosts, world.watchdog.beat)
        if world.rank == 0:
            write_machine(merged(old, machine) if old else machine, out)
            log.info(f"Wrote what was measured to {out}")
    return 0


def _batch_of(text: str, work: Work) -> tuple[int, bool]:
    """The number of samples of --batch, and whether it counts for each worker. Raises UsageError."""
    each = text == EACH or text.startswith(f"{EACH}:")
    number = text.removeprefix(EACH).removeprefix(":") if each else text
    if number and not number.isdecimal():
        raise UsageError(f"--batch takes a number, {EACH} or {EACH}:N, not '{text}'")
    samples = int(number) if number else work.batch
    if samples < 1:
        raise UsageError(f"--batch {text}: a batch has one sample or more")
    return samples, each


def _cells(prediction: Prediction, row: Row) -> tuple[str, ...]:
    hours = prediction.hours(row)
    need = prediction.memory(row)["total"]
    return (
        f"{row.workers:,}",
        row.reduce,
        *(_number(1e3 * one) for one in (row.seconds, row.compute, row.exposed, row.data, row.update)),
        f"{row.speedup:,.2f}",
        f"{row.efficiency:.1%}",
        _number(row.images_per_second),
        "" if hours is None else _number(hours),
        f"{need / 1e9:.2f}",
        "yes" if need <= prediction.machine.device.memory else "no",
    )


def _number(value: float) -> str:
    """Four significant digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" if value >= 1e-3 or not value else "<0.001"


def _row_to_json(prediction: Prediction, row: Row, explained: bool) -> dict[str, Any]:
    memory = {**prediction.memory(row), "device": prediction.machine.device.memory}
    names = ("workers", "reduce", "batch", "compute", "data", "update", "communication", "speedup", "efficiency")
    found: dict[str, Any] = {name: getattr(row, name) for name in (*names, "images_per_second")} | {
        "images_per_worker": row.share,
        "seconds_per_iteration": row.seconds,
        "exposed_communication": row.exposed,
        "communication_exceeds_compute_from": prediction.crossover(row.reduce),
        "memory": memory,
        "fits": memory["total"] <= memory["device"],
    }
    if (hours := prediction.hours(row)) is not None:
        found["hours"] = hours
    if explained:
        found["explain"] = [fact._asdict() for fact in explain(prediction, row)]
    return found


def measure_machine(engine: Engine, device_name: str, cores: int, ranks: int) -> Machine:
    """The device and the memory of a host, by one of its ranks, while `ranks` of them measure and share the cores."""
    log.info("Measuring matrix products and memory")
    is_cpu = engine.xp is np
    memory = float(obtainable_bytes(engine.xp) or 0) or 1e9
    bandwidth = 1e9 * memory_gbytes(engine)
    machine = Machine(
        "this machine",
        Device(device_name, {"fp32": 1e9 * gemm_gflops(engine)}, memory, bandwidth, efficiency=0.7, layer_seconds=1e-5),
        devices_per_node=RANKS if is_cpu else 1,
        within=LINKS["memory"],
        between=LINKS["1GbE"],
        exchange=FCAFFE,
        cores=cores if is_cpu else None,
        add_bandwidth=bandwidth / ACCESSES if is_cpu else None,
    )
    peak = machine.device.peak["fp32"] * machine.slowdown(ranks)
    return replace(machine, device=replace(machine.device, peak={"fp32": peak}))


def measure_links(machine: Machine, comm: Any, hosts: Sequence[str], beat: Callable[[str], None]) -> Machine:
    """The machine with the links between the ranks of `comm`, as the reductions use them. Collective.

    A sum by a server, between the first two ranks of a host or of two hosts, is two messages and an addition.
    """
    from fcaffe.tools.bench_reduce import measure

    if len(set(hosts)) > 1 or not machine.cores:
        machine = replace(machine, devices_per_node=max(hosts.count(host) for host in hosts))
    for name, same in (("within", True), ("between", False)):
        pairs = ((a, b) for b in range(len(hosts)) for a in range(b) if (hosts[a] == hosts[b]) == same)
        if (pair := next(pairs, None)) is None:
            continue
        beat(f"measuring sums {name} hosts")
        part = comm.Split(0 if comm.rank in pair else 1 + comm.rank, comm.rank)
        sums = measure(part, ["server"], [SHORT, LONG], [2], beat) if part.size == 2 else []
        part.Free()
        short, long = comm.bcast([result.seconds for result in sums], root=pair[0])
        adding = LONG / machine.add_bandwidth if machine.add_bandwidth else 0.0
        link: dict[str, Any] = {name: link_of(f"{name} (measured)", short, long - adding)}
        machine = replace(machine, **link)
    return machine


def link_of(name: str, short: float, long: float) -> Link:
    """The link over which two messages of SHORT or LONG bytes, one each way, take these seconds."""
    bandwidth = (LONG - SHORT) / max((long - short) / 2, 1e-9)
    return Link(name, max(short / 2 - SHORT / bandwidth, 1e-8), bandwidth, "measured")


def merged(old: Machine, new: Machine) -> Machine:
    """The new measurements, and the old ones of other nets and of links that were not measured now."""
    links: dict[str, Any] = {
        name: getattr(old, name)
        for name in ("within", "between")
        if "measured" in getattr(old, name).name and "measured" not in getattr(new, name).name
    }
    return replace(new, speeds={**old.speeds, **new.speeds}, **links)
