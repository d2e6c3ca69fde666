"""How many threads compute: as many as the CPUs this process may run on, unless the environment says otherwise."""

from __future__ import annotations

import os

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def available_cpus() -> int:
    """CPUs in this process's affinity mask, which taskset, cgroups' cpusets and batch systems narrow."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_threads() -> None:
    """Tell the BLAS, which reads these once when it is loaded.

    Every BLAS takes the number of its own variable before that of OMP_NUM_THREADS, so where the user has set the latter
    nothing is added.
    """
    if not os.environ.get("OMP_NUM_THREADS"):
        for variable in VARIABLES:
            os.environ.setdefault(variable, str(available_cpus()))
    # OpenBLAS's threads spin for 2^26 cycles after each product. With anything else running they so take the cores from
    # those that have work (measured with one busy neighbour on 2 cores: 2.4 s in place of 1.0 s). 2^4 is its least.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")


def describe_threads() -> str:
    """For the log: how many threads, and who says so."""
    variable = next((name for name in VARIABLES if os.environ.get(name)), "")
    wanted = os.environ.get(variable, "").split(",")[0]
    cpus = available_cpus()
    if not wanted.isdecimal() or int(wanted) >= cpus:
        return f"{_count(cpus)}, as many as the CPUs that this process may run on"
    return f"{_count(int(wanted))} ({variable}; this process may run on {cpus} CPUs)"


def _count(threads: int) -> str:
    return f"{threads} thread" if threads == 1 else f"{threads} threads"
