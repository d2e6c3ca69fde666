"""Which reduction a name means for the buffers of an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from fcaffe import log
from fcaffe.parallel.reductions.gpu.direct import IN_HOST_MEMORY, Direct, cuda_aware
from fcaffe.parallel.reductions.gpu.hierarchical import NcclHierarchical
from fcaffe.parallel.reductions.gpu.nccl import Nccl, why_no_nccl
from fcaffe.parallel.reductions.gpu.staged import Staged
from fcaffe.parallel.reductions.null import Null
from fcaffe.parallel.reductions.reduction import Reduction, create_on_host, parse_name


def create_reduction(name: str, comm: MPI.Intracomm, xp: Any = np) -> Reduction:
    """The reduction of this name between the ranks of `comm`, for arrays of the module `xp`. Collective.

    For CuPy these lie on each rank's current device. What is written for the CPU's buffers then goes through pinned
    memory (`staged`), or straight from the device's memory (`direct`) if every rank's MPI says that it can. Raises
    UsageError.
    """
    if xp is np:
        return create_on_host(name, comm)
    kind, another = parse_name(name)
    name = kind.name
    if name == "auto":
        name, why = pick_on_device(comm)
        if comm.rank == 0:
            log.info(f"auto picks {name}: {why}")
    if name == "null":
        return Null(comm, xp)
    if name == "nccl":
        return Nccl(comm, xp)
    if name == "hierarchical":
        return NcclHierarchical(comm, xp, *another)
    if name in ("staged", "direct"):
        return (Staged if name == "staged" else Direct)(comm, xp, *another)
    straight = name not in IN_HOST_MEMORY and comm.allreduce(cuda_aware(), MPI.LAND)
    return (Direct if straight else Staged)(comm, xp, name)


def pick_on_device(comm: MPI.Intracomm) -> tuple[str, str]:
    """(name, why). Collective."""
    if comm.size == 1:
        return "null", "there is one rank"
    if problem := why_no_nccl(comm):
        return "staged", problem
    return "nccl", f"each of the {comm.size} ranks has a GPU of its own"
