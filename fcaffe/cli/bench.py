"""`fcaffe bench`: measures the reductions between live ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click
import numpy as np

from fcaffe.cli.engine import find_devices
from fcaffe.cli.flags import WORKERS, command, numbers, with_flags
from fcaffe.cli.table import print_table
from fcaffe.cli.workers import HostFlags, LaunchFlags, order_of_command
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
    help="Measure how long the reductions take to sum gradients, as training asks them to, between live ranks, which "
    "it starts (--workers) or which mpiexec or srun has started. Messages and bytes are those of the busiest rank; the "
    "bus bandwidth is nccl-tests'.",
)
@click.argument("what", metavar="reduce", type=click.Choice(["reduce"]))
@click.option("--reduce", "names", default="", metavar="NAME,...", help="Reductions (all that fit the hosts).")
@click.option("--bytes", "sizes", default=GRADIENTS, metavar="N,...", help=f"Bytes to sum ({GRADIENTS}).")
@click.option("--workers", default="", metavar="N,...", help="Numbers of ranks (all that there are, or one for a CPU).")
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    help="Where the gradients lie: in the memory of the host, or on GPUs, of which each rank takes one (cpu).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_flags("hosts", HostFlags, WORKERS)
def bench(what: str, names: str, sizes: str, workers: str, device: str, as_json: bool, hosts: HostFlags) -> int:
    counts, lengths = numbers("--workers", workers), numbers("--bytes", sizes)
    if any(length % 4 for length in lengths):
        raise UsageError(f"--bytes {sizes}: gradients have 4 bytes each, so give multiples of 4")
    world, launching, plan = join(hosts.timeout), LaunchFlags(**vars(hosts)), None
    with world:
        if world.order is None:
            alone = not (hosts.hosts or hosts.hostfile)
            most = max(counts, default=max(available_cpus(), 2) if alone else 0)
            plan = replace(launching, workers=most).plan() if world.size == 1 else None
            launching.check(world, plan)
        if plan is None:
            _measure(world, [name for name in names.split(",") if name], lengths, counts, device, as_json)
    return launch(plan, lambda path: order_of_command()) if plan is not None else 0


def _measure(world: World, names: list[str], sizes: list[int], counts: list[int], device: str, as_json: bool) -> None:
    """Measure and print. Raises UsageError."""
    try:
        from mpi4py import MPI

        from fcaffe.tools.bench_reduce import measure
    except ImportError as problem:
        raise UsageError("The reductions need MPI: pip install mpi4py mpich") from problem
    comm = world.comm or MPI.COMM_SELF
    if max(counts, default=1) > comm.size:
        raise UsageError(f"--workers {max(counts)}, but there are only {comm.size} ranks")
    xp = _cupy(world) if device == "gpu" else np
    results = measure(comm, names, sizes, counts or [comm.size], world.watchdog.beat, xp)
    if world.rank == 0 and as_json:
        print(json.dumps([result._asdict() for result in results], indent=2))
    elif world.rank == 0:
        print_table("Sums of gradients", COLUMNS, [_row(result) for result in results], numbers_from=1)


def _row(result: Any) -> tuple[str, ...]:
    whole = ("" if number is None else f"{number:,}" for number in (result.messages, result.bytes_sent))
    sizes = (f"{number:,}" for number in (result.ranks, result.hosts, result.bytes))
    return (result.reduction, *sizes, f"{1e3 * result.seconds:.3f}", f"{result.busbw:.2f}", *whole)


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
