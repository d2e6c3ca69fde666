"""`fcaffe bench reduce`: measures the reductions between live ranks."""

from __future__ import annotations

import json
from typing import Any

import click
import numpy as np

from fcaffe.cli import glog, usage
from fcaffe.cli.flags import common_flags, with_options
from fcaffe.cli.table import print_table
from fcaffe.cli.usage import Command
from fcaffe.cli.workers import LAUNCH, LaunchFlags, words_for_ranks
from fcaffe.engines.cuda import libraries
from fcaffe.engines.cuda.streams import make_current
from fcaffe.errors import UsageError
from fcaffe.parallel.devices import find_devices
from fcaffe.parallel.launch import launch
from fcaffe.parallel.started import host_name
from fcaffe.parallel.world import World, join
from fcaffe.threads import available_cpus

COLUMNS = ("reduction", "ranks", "hosts", "bytes", "ms", "busbw GB/s", "messages", "bytes sent")
GRADIENTS = "4000,4000000,53000000"  # bytes; the last are GoogLeNet's, in the paper's measurement


@click.command(
    cls=Command,
    example="bench reduce --workers 2,4",
    help="Measure how long the reductions take to sum gradients between live ranks: of --workers that it starts, or of "
    "those that mpiexec or srun has started. Messages and bytes are those of the busiest rank; the bus bandwidth is "
    "nccl-tests'.",
)
@click.argument("what", required=False, metavar="reduce")
@click.option("--reduce", "names", default="", metavar="NAME,...", help="Reductions (all that fit the hosts).")
@click.option("--bytes", "sizes", default=GRADIENTS, metavar="N,...", help=f"Bytes to sum ({GRADIENTS}).")
@click.option("--workers", default="", metavar="N,...", help="Numbers of ranks (all that there are, or one for a CPU).")
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    help="Where the gradients lie: in the memory of the host, or on GPUs, of which each rank takes one (cpu).",
)
@click.option("--plot", default="", metavar="FILE.png", help="Draw the times of the largest size over the ranks.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_options(LAUNCH[1:], usage.WORKERS)  # all but --workers, of which there may be several here
@common_flags
def bench(
    what: str | None,
    names: str,
    sizes: str,
    workers: str,
    device: str,
    plot: str,
    as_json: bool,
    **launching: Any,
) -> int:
    if what != "reduce":
        raise UsageError("bench needs what to measure: bench reduce")
    glog.begin("", None, "", True)
    numbers = _numbers("--bytes", sizes)
    counts = _numbers("--workers", workers)
    if any(number % 4 for number in numbers):
        raise UsageError(f"--bytes {sizes}: gradients have 4 bytes each, so give multiples of 4")
    world = join(launching["timeout"])
    if world.size == 1:
        chosen = max(counts, default=0 if launching["hosts"] or launching["hostfile"] else max(available_cpus(), 2))
        if plan := LaunchFlags(workers=chosen, **launching).plan():
            return launch(plan, words_for_ranks())
    with world:
        xp = _cupy(world) if device == "gpu" else np
        _bench(world, [name for name in names.split(",") if name], numbers, counts, plot, as_json, xp)
    return 0


def _cupy(world: World) -> Any:
    """CuPy, with a GPU of this host made current; if there are more ranks than GPUs, several share one. Raises
    UsageError."""
    devices = find_devices()
    if not devices.count:
        raise UsageError(f"--device gpu: {host_name()} has {devices}")
    number = world.local_rank % devices.count
    cupy, _ = libraries.load(number)
    cupy.cuda.Device(number).use()
    make_current(cupy.cuda.Stream(non_blocking=True))
    return cupy


def _bench(
    world: World, names: list[str], sizes: list[int], counts: list[int], picture: str, as_json: bool, xp: Any
) -> None:
    try:
        from mpi4py import MPI

        from fcaffe.parallel.bench import measure, plot
    except ImportError as problem:
        raise UsageError(
            "The reductions need MPI: pip install 'fcaffe[mpi]' (or pip install mpi4py mpich)"
        ) from problem
    comm = world.comm or MPI.COMM_SELF
    if max(counts, default=1) > comm.size:
        raise UsageError(f"--workers {max(counts)}, but there are only {comm.size} ranks")
    results = measure(comm, names, sizes, counts or [comm.size], world.watchdog.beat, xp)
    if world.rank > 0:
        return
    if picture:
        plot(results, picture)
    if as_json:
        print(json.dumps([result._asdict() for result in results], indent=2))
        return
    rows = [
        (
            result.reduction,
            *(f"{number:,}" for number in (result.ranks, result.hosts, result.bytes)),
            f"{1e3 * result.seconds:.3f}",
            f"{result.busbw:.2f}",
            *("" if number is None else f"{number:,}" for number in (result.messages, result.bytes_sent)),
        )
        for result in results
    ]
    print_table("Sums of gradients", COLUMNS, rows, (), numbers_from=1)


def _numbers(flag: str, text: str) -> list[int]:
    words = text.split(",") if text else []
    if not all(word.isdecimal() and int(word) for word in words):
        raise UsageError(f"{flag} takes positive numbers with commas between them, not '{text}'")
    return [int(word) for word in words]
