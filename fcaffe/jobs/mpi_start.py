"""Finds and starts MPI, and says what is wrong with it or with a launcher that it does not know."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

from fcaffe.errors import UsageError
from fcaffe.jobs.started import REMEDY, Start
from fcaffe.parallel.waiting import end_sleeps_by
from fcaffe.threads import ranks_on_host

# UCX's own segments over TCP have 8 kB. Where TCP is its only transport, MPICH asserts that one fits its own buffers.
SEGMENTS = {"UCX_TCP_TX_SEG_SIZE": "256k", "UCX_TCP_RX_SEG_SIZE": "512k", "MPIR_CVAR_CH4_PACK_BUFFER_SIZE": "262144"}
NETWORK_INTERFACES = ("UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "NCCL_SOCKET_IFNAME")


def prepare_environment(start: Start) -> None:
    """Set variables that MPI and NCCL read when they start, unless the user has set them.

    If all ranks are on this host, nothing may be open to the network: MPI and NCCL use the loopback. UCX carries the
    messages of MPICH and of some Open MPIs. If the user has chosen its transports, UCX chooses the interface, since it
    finds no route over the loopback without shared memory. UCX cuts messages over TCP into few pieces. If the user has
    chosen TCP alone the pieces stay short, as an older MPICH asserts.
    """
    if start.size and ranks_on_host() == start.size:
        for variable in NETWORK_INTERFACES:
            if variable != "UCX_NET_DEVICES" or "UCX_TLS" not in os.environ:
                os.environ.setdefault(variable, "lo")
    if not {"tcp", "self"}.issuperset(os.environ.get("UCX_TLS", "all").split(",")):
        for variable, size in SEGMENTS.items():
            os.environ.setdefault(variable, size)


def load_mpi(start: Start, by_fcaffe: bool = False) -> Any:
    """mpi4py's MPI, not yet initialised, so that the library's name is known if it does not start. Raises UsageError.

    `by_fcaffe`: fcaffe's agents start the ranks, which is possible with MPICH only (see `pmi.py`).
    """
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = True
        with _no_warnings():
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        words = " ".join(str(error).split())
        who, remedy = str(start), "load this launcher's MPI, and pip install mpi4py over it"
        if by_fcaffe:
            who, remedy = "Workers are MPI ranks", "pip install mpi4py mpich; on a cluster, load its MPICH first"
        raise UsageError(f"{who}, but mpi4py cannot be used, or finds no MPI library ({words}): {remedy}") from error
    if by_fcaffe and not (version := _library(MPI)).startswith("MPICH"):
        raise UsageError(
            f"fcaffe can start workers with MPICH only, and mpi4py uses {version}: install MPICH's wheel (pip install "
            f"mpich), or start the workers by your own mpirun (mpirun -n {start.size} fcaffe train ..., without "
            "--workers and --hosts)"
        )
    return MPI


def comm_world(start: Start, mpi: Any) -> tuple[Any, bool]:
    """MPI's world, and whether several threads may call MPI at once."""
    if not mpi.Is_initialized():
        before = _event_queues()
        with _no_warnings():
            mpi.Init_thread(mpi.THREAD_MULTIPLE)
        end_sleeps_by(sorted(_event_queues() - before))
    if mpi.Query_thread() < mpi.THREAD_FUNNELED:
        raise UsageError(
            f"{_library(mpi)} was built, or started, for processes without threads (MPI_THREAD_SINGLE), and fcaffe "
            "reads data in threads: use an MPI that provides MPI_THREAD_FUNNELED or more"
        )
    if mpi.COMM_WORLD.size == 1 and start.size > 1:
        raise UsageError(f"{start}, but {_library(mpi)} does not know its launcher and has one rank only: {REMEDY}")
    return mpi.COMM_WORLD, mpi.Query_thread() >= mpi.THREAD_MULTIPLE


def _event_queues() -> set[int]:
    """The file descriptors of this process that are instances of Linux's epoll."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the listing's own is closed by now
                if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                    found.add(int(name))
    return found


def _library(mpi: Any) -> str:
    """Name and version of the MPI library, on one line."""
    first = mpi.Get_library_version().rstrip("\0").partition("\n")[0]
    return " ".join(first.partition(", package")[0].replace("Version:", "").split())


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppress warnings about variables of another MPI's launcher, which fcaffe reports itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
