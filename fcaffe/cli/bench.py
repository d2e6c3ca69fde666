"""`fcaffe bench`: measures the reductions, or whole training iterations, between live ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click
import numpy as np

from fcaffe.cli import usage
from fcaffe.cli.flags import command, numbers, numbers_of_shape, options_of, with_options
from fcaffe.cli.gpus import find_devices
from fcaffe.cli.table import print_table
from fcaffe.cli.workers import LaunchFlags, order_of_command
from fcaffe.engines.cuda import libraries
from fcaffe.errors import UsageError
from fcaffe.jobs.launch import launch
from fcaffe.jobs.started import host_name
from fcaffe.jobs.world import World, join
from fcaffe.threads import available_cpus

COLUMNS = ("reduction", "ranks", "hosts", "bytes", "ms", "busbw GB/s", "messages", "bytes sent")
GRADIENTS = "4000,4000000,53000000"  # bytes; the last are GoogLeNet's, in the paper's measurement


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
@with_options(options_of(LaunchFlags)[1:6], usage.WORKERS)  # neither --workers nor --elastic
def bench(what: str, names: str, workers: str, as_json: bool, **more: Any) -> int:
    launching = {field.name: more.pop(field.name) for field in fields(LaunchFlags) if field.name in more}
    counts = numbers("--workers", workers)
    chosen = [name for name in names.split(",") if name]
    run = _reduce(counts, chosen, as_json, **more) if what == "reduce" else _step(counts, chosen, as_json, **more)
    world = join(launching["timeout"])
    if world.size == 1 and world.order is None:
        alone = not (launching["hosts"] or launching["hostfile"])
        most = max(counts, default=max(available_cpus(), 2) if alone else 0)
        if plan := LaunchFlags(workers=most, **launching).plan():
            return launch(plan, lambda path: order_of_command())
    with world:
        if world.order is None:
            LaunchFlags(**launching).check(world)
        run(world)
    return 0


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
            raise UsageError(
                "The reductions need MPI: pip install 'fcaffe[mpi]' (or pip install mpi4py mpich)"
            ) from problem
        comm = world.comm or MPI.COMM_SELF
        if max(counts, default=1) > comm.size:
            raise UsageError(f"--workers {max(counts)}, but there are only {comm.size} ranks")
        xp = _cupy(world) if flags["device"] == "gpu" else np
        results = measure(comm, names, sizes, counts or [comm.size], world.watchdog.beat, xp)
        if world.rank == 0 and as_json:
            print(json.dumps([result._asdict() for result in results], indent=2))
        elif world.rank == 0:
            print_table("Sums of gradients", COLUMNS, [_row(result) for result in results], numbers_from=1)

    return run


def _row(result: Any) -> tuple[str, ...]:
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

    def run(world: World) -> None:
        from fcaffe.cli.bench_step import bench_step, steps_only, variants

        if counts and counts != [world.size]:
            raise UsageError(f"--workers {counts[0]}, but there are {world.size} ranks: leave the flag out there")
        synthetic = flags["data"] == "synthetic"
        path = flags["solver"] or flags["net"]
        param = steps_only(path, bool(flags["solver"]), synthetic, flags["batch_size"], shape)
        compared = variants(names or ["auto"], flags["compress"], buckets, flags["no_overlap"])
        source = "synthetic data in memory" if synthetic else "the net's own data"
        bench_step(world, param, compared, flags["rounds"], flags["iterations"], source, as_json)

    return run


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
