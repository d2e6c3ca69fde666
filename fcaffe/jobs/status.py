"""What a rank does, in memory that a fork shares. The rank writes, its agent reads, and neither waits for the other."""

from __future__ import annotations

import mmap
import struct

from fcaffe.parallel.watchdog import STATES, Doing

LAYOUT = struct.Struct("<QBBq96sQ")  # number of changes, state, waits, iteration, operation, number of changes


class Status:
    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, LAYOUT.size)
        self.changes = 0

    def write(self, doing: Doing) -> None:
        self.changes += 1
        state, operation = STATES.index(doing.state), doing.operation.encode()[:96]
        LAYOUT.pack_into(self._memory, 0, self.changes, state, doing.waits, doing.iteration, operation, self.changes)

    def read(self) -> Doing | None:
        """What the rank does, if that has changed since the last call."""
        first, state, waits, iteration, operation, last = LAYOUT.unpack_from(self._memory)
        if first != last or first == self.changes:  # it is being written, or is known
            return None
        self.changes = first
        return Doing(STATES[state], bool(waits), operation.rstrip(b"\0").decode(errors="replace"), iteration)
