"""Measures reductions between live ranks, for `fcaffe bench reduce`.

Buffers are summed as in a training: in-place, in memory that the reduction itself has allocated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple, cast

import numpy as np
from mpi4py import MPI

from fcaffe import log
from fcaffe.errors import FcaffeError
from fcaffe.parallel.reductions import Reduction, create_reduction, reduction_names
from fcaffe.parallel.reductions.auto import Auto
from fcaffe.parallel.reductions.gpu.nccl import why_no_nccl
from fcaffe.parallel.reductions.host_memory import Hosts
from fcaffe.parallel.reductions.reduction import reduction_class
from fcaffe.parallel.reductions.wire import wait

SAMPLE = 2e-3  # seconds that one sample lasts at least: shorter sums are repeated
SAMPLES = 7


class Result(NamedTuple):
    """The measurement of one reduction of `bytes` between `ranks`.

    `seconds` is the median of one all-reduce. `busbw` is nccl-tests' bus bandwidth in GB/s: what each rank's link
    carries if no byte travels twice. `messages` and `bytes_sent` are those of the busiest rank; None if unknown.
    """

    reduction: str
    ranks: int
    hosts: int
    bytes: int
    seconds: float
    busbw: float
    messages: int | None
    bytes_sent: int | None


def measure(
    comm: MPI.Intracomm,
    names: Sequence[str],
    sizes: Sequence[int],
    counts: Sequence[int],
    beat: Callable[[str], None] = lambda operation: None,
    xp: Any = np,
) -> list[Result]:
    """Measure these reductions (if empty: all that fit the hosts) of so many bytes, on so many first ranks of `comm`.

    `beat` is called with the name of each operation before it begins. `xp` is the module of the buffers' arrays; for
    CuPy they lie on the GPU that is current on each rank. Returns the results at rank 0, else an empty list.
    Collective.
    """
    results: list[Result] = []
    for count in counts:
        part = cast(MPI.Intracomm, comm.Split(0 if comm.rank < count else MPI.UNDEFINED, comm.rank))
        for size in sizes:
            beat(f"measuring sums of {size} bytes on {count} ranks")
            if comm.rank < count:
                results += _measure_size(part, names, size, xp)
            wait([comm.Ibarrier()])  # ranks that take no part sleep meanwhile
        if comm.rank < count:
            part.Free()
    return results if comm.rank == 0 else []


def _measure_size(comm: MPI.Intracomm, names: Sequence[str], size: int, xp: Any) -> list[Result]:
    """Measure all reductions alternately, so that other load of the machine affects all of them alike."""
    hosts = Hosts(comm)
    where = f"{comm.size} rank{'s' * (comm.size > 1)} of {hosts.count} host{'s' * (hosts.count > 1)}"
    names = names or _fitting(comm, hosts.count, xp)
    reductions = [create_reduction(name, comm, xp) for name in names]
    shared: Any = None  # by all reductions that allocate no memory of their own
    cases = []  # of each reduction: its buffer, its traffic, the sums of a sample, and the seconds of each sample
    for reduction in reductions:
        if type(reduction).allocate is not Reduction.allocate:
            buffer = reduction.allocate(size // 4)
        elif shared is None:
            buffer = shared = reduction.allocate(size // 4)
        else:
            buffer = shared
        traffic = _check(reduction, buffer)
        repeat = max(1, math.ceil(SAMPLE / max(_time(reduction, buffer, 1), 1e-7)))
        cases.append((reduction, buffer, traffic, repeat, list[float]()))
    if comm.rank == 0:
        log.info(f"Measuring sums of {size} bytes on {where}, {SAMPLES} times each")
        for reduction in reductions:
            if isinstance(reduction, Auto):
                log.info("auto picks {}: {}".format(*reduction.pick(size)))
    for _ in range(SAMPLES):
        for reduction, buffer, _, repeat, seconds in cases:
            seconds.append(_time(reduction, buffer, repeat))
    results = []
    medians = {reduction.name: median(seconds) for reduction, _, _, _, seconds in cases}
    for reduction, _, traffic, _, seconds in cases:
        one = median(seconds)
        if isinstance(reduction, Auto):  # it calls what it picks; the times of two measurements would differ by chance
            one = medians.get(reduction.pick(size)[0], one)
        busbw = size / one * 2 * (comm.size - 1) / comm.size / 1e9
        results.append(Result(reduction.name, comm.size, hosts.count, size, one, busbw, *traffic))
        reduction.close()
    hosts.close()
    return results


def _fitting(comm: MPI.Intracomm, hosts: int, xp: Any) -> list[str]:
    """All reductions that run on so many hosts and sum something, or those for GPUs. Omits aliases. Collective."""
    if xp is np:
        useless = ("null", "hierarchical" if hosts == 1 else "shared")
        return [name for name in reduction_names() if name not in useless and not reduction_class(name).on_device]
    return ["staged:auto"] if why_no_nccl(comm) else ["nccl", "staged:auto"]


def _check(reduction: Reduction, buffer: np.ndarray) -> tuple[int | None, int | None]:
    """Check one sum; returns messages and bytes of the busiest rank. Raises FcaffeError for a wrong sum."""
    before = reduction.messages, reduction.bytes_sent
    buffer[:] = reduction.rank + 1
    _sum(reduction, buffer)
    sums: Any = buffer if reduction.xp is np else buffer.get()  # type: ignore[attr-defined]
    right = bool(np.all(sums == reduction.ranks * (reduction.ranks + 1) // 2)) or reduction.name == "null"
    if not reduction.comm.allreduce(right, MPI.LAND):
        raise FcaffeError(f"reduction {reduction.name}: wrong sums of {buffer.nbytes} bytes on {reduction.ranks} ranks")
    messages = reduction.comm.allreduce(reduction.messages - before[0], MPI.MAX)
    sent = reduction.comm.allreduce(reduction.bytes_sent - before[1], MPI.MAX)
    return (messages, sent) if reduction.comm.allreduce(reduction.counted, MPI.LAND) else (None, None)


def _sum(reduction: Reduction, buffer: np.ndarray) -> None:
    """Sum a bucket as the exchange of a training does (`fcaffe/parallel/exchange.py`)."""
    reduction.start(buffer, reduction.mark())
    reduction.finish()


def _time(reduction: Reduction, buffer: np.ndarray, repeat: int) -> float:
    """Seconds of one of `repeat` sums, at the slowest rank. The buffer is written before, as gradients are."""
    on_host = reduction.xp is np
    settle = (lambda: None) if on_host else reduction.xp.cuda.get_current_stream().synchronize
    buffer[:] = 0
    settle()
    reduction.comm.Barrier()
    began = time.perf_counter()
    for _ in range(repeat):
        _sum(reduction, buffer)
    settle()
    return reduction.comm.allreduce(time.perf_counter() - began, MPI.MAX) / repeat
