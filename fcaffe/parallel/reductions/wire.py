"""Messages between the ranks of a communicator, counted."""

from __future__ import annotations

from collections.abc import Sequence

from mpi4py import MPI

from fcaffe.net.blob import Array
from fcaffe.parallel.waiting import wait_until


class Wire:
    """Sends and receives arrays.

    `messages` counts those of this rank; two at once, one in each direction, as one.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.messages = 0
        self.bytes_sent = 0

    def send(self, array: Array, to: int) -> None:
        wait([self.start_send(array, to)])

    def receive(self, array: Array, source: int) -> None:
        wait([self.start_receive(array, source)])

    def exchange(self, outgoing: Array, to: int, incoming: Array, source: int) -> None:
        self.exchange_each([outgoing], to, [incoming], source)

    def exchange_each(self, outgoing: Sequence[Array], to: int, incoming: Sequence[Array], source: int) -> None:
        """Send several arrays and receive several, all at once."""
        receiving = [self.comm.Irecv(array, source) for array in incoming]
        wait(receiving + [self.start_send(array, to) for array in outgoing])

    def exchange_all(self, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
        """Send outgoing[r] to every other rank r and receive its incoming[r], all at once."""
        ranks, rank = self.comm.size, self.comm.rank
        others = [(rank + distance) % ranks for distance in range(1, ranks)]
        receiving = [self.start_receive(incoming[other], other) for other in reversed(others)]
        wait(receiving + [self.start_send(outgoing[other], other) for other in others])

    def start_send(self, array: Array, to: int) -> MPI.Request:
        self.messages += 1
        self.bytes_sent += array.nbytes
        return self.comm.Isend(array, to)

    def start_receive(self, array: Array, source: int) -> MPI.Request:
        self.messages += 1
        return self.comm.Irecv(array, source)


def wait(requests: Sequence[MPI.Request]) -> None:
    wait_until(lambda: MPI.Request.Testall(requests))
