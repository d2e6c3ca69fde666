"""Which reduction a name means for buffers on GPUs."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from fcaffe import log
from fcaffe.parallel.reductions.nccl import Nccl, why_no_nccl
from fcaffe.parallel.reductions.nccl_hierarchical import NcclHierarchical
from fcaffe.parallel.reductions.null import Null
from fcaffe.parallel.reductions.reduction import Reduction
from fcaffe.parallel.reductions.staged import IN_HOST_MEMORY, Direct, Staged, cuda_aware


def create_on_device(name: str, another: str, comm: MPI.Intracomm, xp: Any) -> Reduction:
    """The reduction `name`, or `name:another`, for arrays of `xp`, CuPy, on each rank's current device. Collective.

    What is written for the CPU's buffers goes through pinned memory (`staged`), or straight from the device's memory
    (`direct`) if every rank's MPI says that it can. Raises UsageError.
    """
    more = [another] if another else []
    if name == "auto":
        name, why = pick_on_device(comm)
        if comm.rank == 0:
            log.info(f"auto picks {name}: {why}")
    if name == "null":
        nothing = Null(comm)
        nothing.xp = xp
        return nothing
    if name == "nccl":
        return Nccl(comm, xp)
    if name == "hierarchical":
        return NcclHierarchical(comm, xp, *more)
    if name in ("staged", "direct"):
        return (Staged if name == "staged" else Direct)(comm, xp, *more)
    straight = name not in IN_HOST_MEMORY and comm.allreduce(cuda_aware(), MPI.LAND)
    return (Direct if straight else Staged)(comm, xp, name)


def pick_on_device(comm: MPI.Intracomm) -> tuple[str, str]:
    """(name, why). Collective."""
    if comm.size == 1:
        return "null", "there is one rank"
    if problem := why_no_nccl(comm):
        return "staged", problem
    return "nccl", f"each of the {comm.size} ranks has a GPU of its own"
