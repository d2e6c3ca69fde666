"""`hierarchical` for buffers on GPUs. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any, cast

from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.gpu.nccl import NcclRanks
from fcaffe.parallel.reductions.gpu.reduction import DeviceReduction
from fcaffe.parallel.reductions.gpu.staged import Staged
from fcaffe.parallel.reductions.hosts import Hosts
from fcaffe.parallel.reductions.reduction import register


@register("hierarchical", gpu=True)
class NcclHierarchical(DeviceReduction):
    """NCCL within a host, another reduction between hosts, through pinned memory.

    Each rank of a host gets the host's sum of one slice (reduce-scatter), adds it to the same slice of other hosts, and
    sends the total to its host (all-gather). NCCL needs slices of equal length; the last slice has the few remaining
    floats. The host waits while several hosts exchange their sums.
    """

    takes_another = True

    def __init__(self, comm: MPI.Intracomm, xp: Any, between: str = "auto") -> None:
        super().__init__(comm, xp)
        if between != "auto":
            self.name = f"{self.name}:{between}"
        hosts = Hosts(self.comm)
        if min(hosts.sizes) < max(hosts.sizes):
            raise UsageError(
                f"reduction {self.name}: the hosts have {', '.join(map(str, hosts.sizes))} ranks, and with GPUs all "
                "need as many; use nccl, or staged:hierarchical"
            )
        self.local_rank, self.local_ranks = hosts.comm.rank, hosts.comm.size
        self.nccl = NcclRanks(hosts.comm)
        peers = cast(MPI.Intracomm, self.comm.Split(self.local_rank, hosts.index))
        with self.stream:  # the sums between hosts wait for this stream, and it waits for them
            self.between = Staged(peers, xp, between if peers.size > 1 else "null")
        self.host_waits = peers.size > 1
        peers.Free()
        hosts.close()
        self.counted = False

    def close(self) -> None:
        self.stream.synchronize()
        self.between.close()
        self.nccl.close()
        super().close()

    def add_up(self, buffer: Array) -> None:
        length = buffer.size // self.local_ranks
        last = self.local_ranks - 1
        start = self.local_rank * length
        own = slice(start, buffer.size if self.local_rank == last else start + length)
        rest = buffer[self.local_ranks * length :]
        library, stream = self.nccl.library, self.stream.ptr
        kind, add = library.NCCL_FLOAT32, library.NCCL_SUM
        whole, mine, left = buffer.data.ptr, buffer[own].data.ptr, rest.data.ptr
        down: list[tuple[Any, ...]] = []
        up: list[tuple[Any, ...]] = []
        if length:
            down.append(("reduceScatter", whole, mine, length, kind, add, stream))
            up.append(("allGather", mine, whole, length, kind, stream))
        if rest.size:
            down.append(("reduce", left, left, rest.size, kind, add, last, stream))
            up.append(("broadcast", left, left, rest.size, kind, last, stream))
        self.nccl.group(*down)
        self.between.sum(buffer[own])
        self.nccl.group(*up)

    def raise_failed(self) -> None:
        self.nccl.check()
