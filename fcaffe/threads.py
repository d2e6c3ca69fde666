"""How many threads compute: as many as the CPUs this process may run on, unless the user's environment says otherwise."""

from __future__ import annotations

import os

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def available_cpus() -> int:
    """CPUs in this process's affinity mask, which taskset, cgroups' cpusets and batch systems narrow."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_threads() -> None:
    """Tell the BLAS, which reads these once when it is loaded."""
    for variable in VARIABLES:
        os.environ.setdefault(variable, str(available_cpus()))
