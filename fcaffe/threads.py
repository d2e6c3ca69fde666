"""The number of threads: as many as the CPUs that this process may use, unless the environment sets another.

The command line sets it for all libraries by environment variables, before they load. A program that uses fcaffe as a
library keeps its environment; there fcaffe only limits the threads of its own operators.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import re
import struct
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from fcaffe.cgroups import cpu_quota

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

# GNU OpenMP's threads spin for milliseconds by default. So many spins, some 20 microseconds, bridge most gaps between
# operations as well. More spins take cores from the thread that the others wait for: see docs/benchmarks.md.
SPINS = "1000"

SLICE = 100_000  # nanoseconds, the shortest time slice that Linux grants
SET_SCHEDULING = {"x86_64": 314, "aarch64": 274}  # the system call sched_setattr

GIVEN = "FCAFFE_OMP_NUM_THREADS"  # the user's OMP_NUM_THREADS, where fcaffe has set another

# Launchers' variables for the number of ranks on a host; Slurm's has a number for each host, such as 4(x2),3.
RANKS = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE")

_limited: list[str] = []  # variables that fcaffe has set
_in_forks: weakref.WeakSet[Any] = weakref.WeakSet()
_shard_threads = 1


def available_cpus() -> int:
    """Return the CPUs that this process may use.

    These are the CPUs of its affinity mask, which taskset, cpusets and batch systems set, or fewer if its control
    groups have a quota of CPU time, as containers have.
    """
    return min(_cpus_of(0), _most())


def ranks_on_host() -> int:
    """Return the number of ranks that the launcher started on this host; 1 without a launcher."""
    for variable in RANKS:
        number = re.match(r"[1-9]\d*", os.environ.get(variable, ""))
        if number:
            return int(number[0])
    return 1


def fair_threads() -> int:
    """Return this process's share of the CPUs of its host's ranks, or fewer if a launcher has bound it to fewer."""
    ranks, cpus = ranks_on_host(), available_cpus()
    if ranks == 1:
        return cpus
    of_host = cpus
    with contextlib.suppress(OSError):
        of_host = min(_cpus_of(os.getppid()), _most())
    return max(1, min(cpus, of_host // ranks))


def set_for_command() -> None:
    """Set the number of threads in the environment, which libraries read when they load. For the command line only.

    Every BLAS prefers its own variable to OMP_NUM_THREADS, so if the user has set the latter, nothing is added.
    """
    if not os.environ.get("OMP_NUM_THREADS"):
        for variable in VARIABLES:
            if variable not in os.environ:
                os.environ[variable] = str(fair_threads())
                _limited.append(variable)
    # OpenBLAS's threads spin for 2^26 cycles after each product, which takes cores from threads that have work (with
    # one busy neighbour on 2 cores: 2.4 s instead of 1.0 s). 2^4 is the minimum.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


@contextlib.contextmanager
def brief_spinning() -> Iterator[None]:
    """An OpenMP library that the body loads lets its threads spin briefly, unless the environment has a setting."""
    added = not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}.intersection(os.environ)
    if added:
        os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        yield
    finally:
        if added:
            del os.environ["GOMP_SPINCOUNT"]


def ask_for_short_slices() -> None:
    """Ask Linux for short time slices for this thread and the threads that it starts later.

    Their share of the CPU stays the same. Threads that wait for one another in each layer lose most of their turns if
    each has to wait some milliseconds for a core that a busy process holds: see docs/benchmarks.md. Kernels before 6.12
    ignore this.
    """
    number = SET_SCHEDULING.get(platform.machine())
    if sys.platform == "linux" and number and os.sched_getscheduler(0) == os.SCHED_OTHER:
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        # struct sched_attr: size, policy, flags, nice, priority; runtime (here the slice), deadline and period
        attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, niceness, 0, SLICE, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)  # a sandbox may refuse it


def renew_in_forks(owner: Any) -> None:
    """Call owner.after_fork() in each process forked from this one. That process has none of this one's other threads,
    so nothing may wait for a lock or a result of theirs."""
    _in_forks.add(owner)


def _renew() -> None:
    for owner in list(_in_forks):
        owner.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def compute_with_one_thread() -> None:
    """Give the libraries one thread; call this before they are loaded. The threads compute shards, side by side.

    Several threads cut a product elsewhere, and so round it differently, which --reproducible rules out.
    """
    global _shard_threads
    given = "" if "OMP_NUM_THREADS" in _limited else os.environ.get("OMP_NUM_THREADS", "")
    _shard_threads = _number_of(os.environ.setdefault(GIVEN, given))  # which ranks inherit
    os.environ.update(dict.fromkeys(VARIABLES, "1"))
    _limited.clear()


def wanted_threads() -> int:
    """Return how many threads are to compute."""
    return _number_of(os.environ.get("OMP_NUM_THREADS", ""))


def _number_of(given: str) -> int:
    wanted = given.split(",")[0]
    return min(int(wanted), available_cpus()) if wanted.isdecimal() and int(wanted) else fair_threads()


def shard_threads() -> int:
    """Return how many threads are to compute shards, each with libraries of one thread."""
    return _shard_threads


def has_one_thread() -> bool:
    """Whether the environment sets one thread for all libraries."""
    return all(os.environ.get(name) == "1" for name in VARIABLES)


def environment_of_others() -> dict[str, str]:
    """Return the environment without fcaffe's settings, for processes that choose their own number of threads."""
    return {name: value for name, value in os.environ.items() if name not in _limited}


def describe_threads() -> str:
    """Return the number of threads, and its source, for the log."""
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
    """Return the number of CPUs in the affinity mask of a process; 0 is this one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(process))
    return os.cpu_count() or 1


def _most() -> int:
    """Return how many threads the control groups' quota keeps busy."""
    quota = cpu_quota()
    return sys.maxsize if quota is None else max(1, math.ceil(quota))


def _count(threads: int) -> str:
    return f"{threads} thread" if threads == 1 else f"{threads} threads"
