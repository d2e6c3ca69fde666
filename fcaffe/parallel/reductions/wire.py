"""Messages between the ranks of a communicator, counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from fcaffe.parallel.reductions.waiting import wait_until


class Wire:
    """Sends and receives arrays. `messages` counts those of this rank; two at once, one in each direction, as one."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.before: Callable[[], None] = _nothing  # called before MPI touches an array
        self.messages = 0
        self.bytes_sent = 0

    def send(self, array: np.ndarray, to: int) -> None:
        wait([self.start_send(array, to)])

    def receive(self, array: np.ndarray, source: int) -> None:
        wait([self.start_receive(array, source)])

    def exchange(self, outgoing: np.ndarray, to: int, incoming: np.ndarray, source: int) -> None:
        self.before()
        receiving = self.comm.Irecv(incoming, source)
        sending = self.start_send(outgoing, to)
        wait([receiving, sending])

    def start_send(self, array: np.ndarray, to: int) -> MPI.Request:
        self.before()
        self.messages += 1
        self.bytes_sent += array.nbytes
        return self.comm.Isend(array, to)

    def start_receive(self, array: np.ndarray, source: int) -> MPI.Request:
        self.before()
        self.messages += 1
        return self.comm.Irecv(array, source)


def _nothing() -> None:
    pass


def wait(requests: Sequence[MPI.Request]) -> None:
    wait_until(lambda: MPI.Request.Testall(requests))
