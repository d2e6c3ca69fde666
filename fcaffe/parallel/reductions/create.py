"""Which reduction a name means for the buffers of an engine."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from mpi4py import MPI

from fcaffe import log
from fcaffe.parallel.reductions.gpu.nccl import why_no_nccl
from fcaffe.parallel.reductions.gpu.staged import Staged
from fcaffe.parallel.reductions.reduction import Null, Reduction, create_on_host, parse_name


def create_reduction(name: str, comm: MPI.Intracomm, xp: Any = np) -> Reduction:
    """Create the reduction of this name. Collective.

    Args:
        name: What `--reduce` takes, such as `hierarchical:ring`.
        comm: The ranks that sum.
        xp: The module of the buffers' arrays. Those of CuPy lie on each rank's current device. A reduction of the
            host then sums them in pinned memory (`staged`).

    Raises:
        UsageError: There is no such reduction, or it does not fit the buffers or the ranks.
    """
    if xp is np:
        return create_on_host(name, comm)
    kind, another = parse_name(name)
    if kind.name == "auto":
        name, why = pick_on_device(comm)
        if comm.rank == 0:
            log.info(f"auto picks {name}: {why}")
        kind = parse_name(name)[0]
    if kind.on_device or kind is Null:
        return cast(Any, kind)(comm, xp, *another)
    return Staged(comm, xp, name)


def pick_on_device(comm: MPI.Intracomm) -> tuple[str, str]:
    """(name, why) of the reduction that auto means on GPUs. Collective."""
    if comm.size == 1:
        return "null", "there is one rank"
    if problem := why_no_nccl(comm):
        return "staged", problem
    return "nccl", f"each of the {comm.size} ranks has a GPU of its own"
