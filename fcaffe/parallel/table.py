"""Heartbeat table: memory that the ranks of a host share with their agent, one slot for each rank."""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple

SLOT = struct.Struct("<qqqqq88s")  # rank, process, beats, iteration, state, the operation's name
STARTING, WORKING, WAITING, LEAVING, FAILED, STOPPED = range(6)


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
