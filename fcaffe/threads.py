"""How many threads compute: as many as the CPUs this process may use, unless the environment says otherwise.

The command line tells all libraries so by environment variables, before they are loaded. A program that uses fcaffe as
a library has its own environment and its own libraries, which stay as they are: there fcaffe only sees to it that its
own operators use no more threads than that.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys

from fcaffe.cgroups import cpu_quota, whole_cpus

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

# How many ranks a host has, as launchers say it; Slurm's has one number for each host, such as 4(x2),3.
RANKS = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE")

_limited: list[str] = []  # variables that we have set


def available_cpus() -> int:
    """CPUs that this process may use: those in its affinity mask, which taskset, cgroups' cpusets and batch systems
    narrow, or fewer if its control groups have a quota of CPU time, as containers have."""
    return min(_cpus_of(0), _most())


def ranks_on_host() -> int:
    """How many ranks the launcher that started this process put on this host; 1 if there was none."""
    for variable in RANKS:
        number = re.match(r"[1-9]\d*", os.environ.get(variable, ""))
        if number:
            return int(number[0])
    return 1


def fair_threads() -> int:
    """This process's part of the CPUs that the ranks of a host share, unless a launcher has given it less already."""
    ranks, cpus = ranks_on_host(), available_cpus()
    if ranks == 1:
        return cpus
    everyones = cpus
    with contextlib.suppress(OSError):
        everyones = min(_cpus_of(os.getppid()), _most())
    return max(1, min(cpus, everyones // ranks))


def set_for_command() -> None:
    """Tell the libraries that compute, which read the environment once when they are loaded. For the command line only.

    Every BLAS takes the number of its own variable before that of OMP_NUM_THREADS, so where the user has set the latter
    nothing is added.
    """
    if not os.environ.get("OMP_NUM_THREADS"):
        for variable in VARIABLES:
            if variable not in os.environ:
                os.environ[variable] = str(fair_threads())
                _limited.append(variable)
    # OpenBLAS's threads spin for 2^26 cycles after each product. With anything else running they so take the cores from
    # those that have work (measured with one busy neighbour on 2 cores: 2.4 s in place of 1.0 s). 2^4 is its least.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    # GNU OpenMP's spin for some milliseconds. A fraction of one bridges the gaps between operations as well: on a quiet
    # machine a step of LeNet with 64 images takes as long with ten times as much. Where others want the cores, such as
    # neighbours or ranks, that takes them from the thread that is waited for: a step took more than twice as long.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def compute_with_one_thread() -> None:
    """Give the libraries one thread, whatever the environment says; call this before they are loaded.

    Several threads cut a product elsewhere, and so round it differently, which --reproducible rules out.
    """
    os.environ.update(dict.fromkeys(VARIABLES, "1"))
    _limited.clear()


def wanted_threads() -> int:
    """How many threads are to compute."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return min(int(wanted), available_cpus()) if wanted.isdecimal() and int(wanted) else fair_threads()


def has_one_thread() -> bool:
    """Whether all libraries were told so."""
    return all(os.environ.get(name) == "1" for name in VARIABLES)


def environment_of_others() -> dict[str, str]:
    """The environment for processes that are to find out themselves how many threads they may use."""
    return {name: value for name, value in os.environ.items() if name not in _limited}


def describe_threads() -> str:
    """For the log: how many threads, and who says so."""
    variable = next((name for name in VARIABLES if os.environ.get(name)), "")
    wanted = os.environ.get(variable, "").split(",")[0]
    cpus, ranks = available_cpus(), ranks_on_host()
    if not wanted.isdecimal() or int(wanted) >= cpus:
        quota = cpu_quota()
        if quota is not None and cpus < _cpus_of(0):
            return f"{_count(cpus)}, for a quota of {quota:.3g} CPUs' time (of a container or batch job)"
        return f"{_count(cpus)}, as many as the CPUs that this process may run on"
    if variable in _limited:
        return f"{_count(int(wanted))} for each of the {ranks} ranks on this host"
    return f"{_count(int(wanted))} ({variable}; this process may run on {cpus} CPUs)"


def _cpus_of(process: int) -> int:
    """The CPUs in the affinity mask of a process; 0 is this one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(process))
    return os.cpu_count() or 1


def _most() -> int:
    """The most threads that the control groups' quota keeps busy."""
    quota = cpu_quota()
    return sys.maxsize if quota is None else whole_cpus(quota)


def _count(threads: int) -> str:
    return f"{threads} thread" if threads == 1 else f"{threads} threads"
