"""cupy.cuda.nccl, whose operations MPI does when their stream runs. It is there for those who make it `available`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tests.engines.cuda.stand_in_cupy import memory, streams


def _floats(address: int, count: int) -> np.ndarray:
    return memory.as_numpy(address, np.float32, count)


class NcclError(RuntimeError):
    pass


class NcclCommunicator:
    """NCCL's operations, done by MPI when their stream runs."""

    broken = ""  # what check_async_error complains of

    def __init__(self, ranks: int, identity: tuple[int, ...], rank: int) -> None:
        from mpi4py import MPI

        assert len(identity) == 128
        self.comm = MPI.COMM_WORLD.Split(identity[0], rank)
        assert (self.comm.size, self.comm.rank) == (ranks, rank)
        streams.calls.append(("init", ranks, rank))

    def allReduce(self, source: int, to: int, count: int, kind: int, add: int, stream: int) -> None:  # noqa: N802
        assert source == to
        streams.calls.append(("allReduce", count, kind, add, stream))
        streams.put(lambda: self._all_reduce(_floats(to, count)), stream)

    def reduceScatter(self, source: int, to: int, count: int, kind: int, add: int, stream: int) -> None:  # noqa: N802
        assert to == source + 4 * count * self.comm.rank
        streams.calls.append(("reduceScatter", count, kind, add, stream))
        streams.put(lambda: self._all_reduce(_floats(source, count * self.comm.size), to, count), stream)

    def reduce(self, source: int, to: int, count: int, kind: int, add: int, root: int, stream: int) -> None:
        assert source == to
        streams.calls.append(("reduce", count, kind, add, root, stream))
        own = self.comm.rank == root
        streams.put(lambda: self._all_reduce(_floats(source, count), to, count if own else 0), stream)

    def allGather(self, source: int, to: int, count: int, kind: int, stream: int) -> None:  # noqa: N802
        assert source == to + 4 * count * self.comm.rank
        streams.calls.append(("allGather", count, kind, stream))
        everyones = _floats(to, count * self.comm.size)
        streams.put(lambda: self.comm.Allgather(_floats(source, count).copy(), everyones), stream)

    def broadcast(self, source: int, to: int, count: int, kind: int, root: int, stream: int) -> None:
        assert source == to
        streams.calls.append(("broadcast", count, kind, root, stream))
        streams.put(lambda: self.comm.Bcast(_floats(to, count), root), stream)

    def _all_reduce(self, values: np.ndarray, to: int | None = None, count: int = 0) -> None:
        """Like NCCL, leaves rubbish in what is not this rank's."""
        total = np.empty_like(values)
        self.comm.Allreduce(values, total)
        if to is None:
            values[:] = total
            return
        start = (to - values.ctypes.data) // 4
        values[:] = np.nan
        values[start : start + count] = total[start : start + count]

    def check_async_error(self) -> None:
        if NcclCommunicator.broken:
            raise NcclError(NcclCommunicator.broken)

    def abort(self) -> None:
        streams.calls.append(("abort",))

    def destroy(self) -> None:
        streams.calls.append(("destroy",))


def unique_id() -> tuple[int, ...]:
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank, *range(127)


module: Any = ModuleType("cupy.cuda.nccl")
module.__dict__.update(
    available=False,
    NcclError=NcclError,
    NcclCommunicator=NcclCommunicator,
    NCCL_FLOAT32=7,
    NCCL_SUM=0,
    get_unique_id=unique_id,
    groupStart=lambda: streams.calls.append(("groupStart",)),
    groupEnd=lambda: streams.calls.append(("groupEnd",)),
)
