"""Heartbeat table: memory that the ranks of a host share with their agent. Each rank writes into a slot of its own."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

TABLE = "FCAFFE_TABLE"  # in a rank's environment: the descriptor of the table
SLOT = struct.Struct("<qqqqq88s")  # rank, process, beats, iteration, state, the operation's name
STARTING, WORKING, WAITING, LEAVING, FAILED, STOPPED = range(6)
MARGIN = 30.0  # seconds beyond the time-out for the ranks to load Python and fcaffe, and to find one another


class Slot(NamedTuple):
    """What a rank does: `state` is one of the constants above, `iteration` is -1 outside of training."""

    rank: int
    pid: int
    beats: int
    iteration: int
    state: int
    operation: str

    def where(self) -> str:
        """The operation, for a message."""
        return self.operation if self.iteration < 0 else f"{self.operation} of iteration {self.iteration}"

    def pack(self) -> bytes:
        return SLOT.pack(*self[:-1], self.operation.encode())


def read_slots(table: bytes | mmap.mmap) -> list[Slot]:
    slots = []
    for rank, pid, beats, iteration, state, name in SLOT.iter_unpack(table[:]):
        slots.append(Slot(rank, pid, beats, iteration, state, name.rstrip(b"\0").decode(errors="replace")))
    return slots


def create_table(ranks: int) -> int:
    """The descriptor of a table for so many ranks; the memory goes with the last process that has it open."""
    descriptor = os.memfd_create("fcaffe-ranks")
    os.truncate(descriptor, ranks * SLOT.size)
    return descriptor


class Watchdog:
    """Writes heartbeats; without a table nobody reads them, as for a single worker."""

    def __init__(self, rank: int = 0, table: Any = None, index: int = 0) -> None:
        self._rank = rank
        self._table = bytearray(SLOT.size) if table is None else table
        self._offset = index * SLOT.size
        self._beats = 0
        self._work = ("the start", -1)
        self._write(STARTING, *self._work)

    def beat(self, operation: str, iteration: int = -1) -> None:
        """This rank now does `operation`, which may take as long as the time-out allows."""
        self._work = (operation, iteration)
        self._write(WORKING, operation, iteration)

    @contextlib.contextmanager
    def waiting(self, operation: str, iteration: int | None = None) -> Iterator[None]:
        """In the body of the `with` other ranks are waited for, in this `operation` (of the last beat's iteration)."""
        self._write(WAITING, operation, self._work[1] if iteration is None else iteration)
        try:
            yield
        finally:
            self._write(WORKING, *self._work)

    @property
    def operation(self) -> str:
        """What this rank does, for a message."""
        return Slot(0, 0, 0, self._work[1], WORKING, self._work[0]).where()

    def leave(self, failed: bool = False) -> None:
        """This rank's end is near and no fault; or it has `failed`, and says itself how."""
        self._write(FAILED if failed else LEAVING, "the end", self._work[1])

    def _write(self, state: int, operation: str, iteration: int) -> None:
        self._beats += 1
        slot = Slot(self._rank, os.getpid(), self._beats, iteration, state, operation)
        self._table[self._offset : self._offset + SLOT.size] = slot.pack()
