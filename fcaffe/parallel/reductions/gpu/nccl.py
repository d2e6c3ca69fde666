"""Sums by NVIDIA's NCCL. The tests check its calls against a recording stand-in."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from mpi4py import MPI

from fcaffe.errors import FcaffeError, UsageError
from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.gpu.reduction import DeviceReduction
from fcaffe.parallel.reductions.host_memory import Hosts
from fcaffe.parallel.reductions.reduction import register

INSTALL = "install it (pip install nvidia-nccl-cu12, or -cu13 for CUDA 13)"


@register("nccl")
class Nccl(DeviceReduction):
    """NCCL's all-reduce, in place, on a stream of its own; its messages cannot be counted.

    Raises UsageError on all ranks if NCCL would not start, FcaffeError for NCCL's own errors. NCCL reports the failure
    of an operation later, so each sum checks for it first. After an error NCCL is aborted, so that no kernel waits for
    ever.
    """

    counted = False
    host_waits = False

    def __init__(self, comm: MPI.Intracomm, xp: Any) -> None:
        if problem := why_no_nccl(comm):
            raise UsageError(f"reduction nccl: {problem}; use staged:auto, which copies gradients through host memory")
        super().__init__(comm, xp)
        self.library = nccl_library()
        assert self.library is not None
        self._errors = (self.library.NcclError, KeyError)  # CuPy has no words for NCCL's newest errors
        self._communicator: Any = None
        try:
            own = self.library.get_unique_id() if comm.rank == 0 else None
        except self._errors as problem:
            own = str(problem)
        identity = comm.bcast(own)
        if isinstance(identity, str):
            raise FcaffeError(f"NCCL does not start on rank 0: {identity}; NCCL_DEBUG=INFO shows why")
        self._communicator = self._guarded(self.library.NcclCommunicator, comm.size, identity, comm.rank)

    def add_up(self, buffer: Array) -> None:
        self.raise_failed()
        library, address = self.library, buffer.data.ptr
        kinds = library.NCCL_FLOAT32, library.NCCL_SUM
        self._guarded(self._communicator.allReduce, address, address, buffer.size, *kinds, self.stream.ptr)

    def raise_failed(self) -> None:
        self._guarded(self._communicator.check_async_error)

    def close(self) -> None:
        self.stream.synchronize()
        self._communicator.destroy()
        super().close()

    def _guarded(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._errors as problem:
            if self._communicator is not None:
                self._communicator.abort()
            raise FcaffeError(
                f"NCCL failed: {problem}; another rank may have ended first, NCCL_DEBUG=INFO shows more"
            ) from problem


def nccl_library() -> Any:
    """CuPy's module for NCCL; None if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's warning; fcaffe has one of its own
        try:
            library = importlib.import_module("cupy.cuda.nccl")
        except ImportError:
            return None
    return library if library.available else None


def why_no_nccl(comm: MPI.Intracomm) -> str:
    """Why NCCL cannot work between these ranks, each with its current device; empty if it can. Collective."""
    hosts = Hosts(comm)
    index = hosts.index
    hosts.close()
    there = nccl_library() is not None
    answers = comm.allgather((there, index, MPI.Get_processor_name(), _bus_address()))
    first: dict[tuple[int, str], int] = {}
    for rank, (found, host, name, device) in enumerate(answers):
        if not found:
            return f"CuPy finds no NCCL on rank {rank} ({name}): {INSTALL}"
        other = first.setdefault((host, device), rank)
        if other != rank:
            return f"ranks {other} and {rank} share one GPU ({device} of {name}), and NCCL wants one for each"
    return ""


def _bus_address() -> str:
    """The address of the current device. Its number may differ between ranks, which may see different devices."""
    from cupy.cuda import runtime

    return runtime.deviceGetPCIBusId(runtime.getDevice())
