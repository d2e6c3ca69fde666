"""A rank's side of its agent: the heartbeats that it writes."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import Any

from fcaffe.parallel import forked_rank
from fcaffe.parallel.local_ranks import TABLE
from fcaffe.parallel.started import LAUNCHED, Start, host_name, is_child_of_rank
from fcaffe.parallel.table import FAILED, LEAVING, SLOT, STARTING, WAITING, WORKING, Slot


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


def of_started_rank(start: Start | None, timeout: float) -> Watchdog | None:
    """The watchdog of this process as a rank that an agent has started, or that gets one of its own now; None if it is
    no rank."""
    if TABLE in os.environ and not is_child_of_rank(os.environ):
        table = mmap.mmap(int(os.environ[TABLE]), 0)
        return Watchdog(start.rank if start else 0, table, int(os.environ["MPI_LOCALRANKID"]))
    if start is None:
        return None
    launched = LAUNCHED in os.environ
    return Watchdog(start.rank, forked_rank.fork(start.rank, start.size, host_name(), timeout, launched))
