"""Live ranges of storages, and their offsets in one arena, such that no two live storages overlap.

A live range is from the step that writes the values to the last step that reads them. Recomputed values have two: one
ends with the last forward step that reads them, and the other begins with the step that recomputes them.

A worked example: x (8 MB, live in steps 0 to 3), p (1 MB, 1 to 2), dy (8 MB, 2 to 4) and dx (6 MB, 5 to 6) need 17 MB,
not 23:

    offset  0        8        16  17 MB
            | x      | dy     | p |       steps 0 to 4
            | dx   |                      steps 5 to 6
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fcaffe.net.blob import Storage
from fcaffe.net.run.program import Again, Program

Ranges = list[tuple[int, int]]  # first and last step of each live range of a storage

STEP = 1024  # bytes; offsets in the arena are its multiples: see `GAP` of fcaffe.engines.memory

ATTEMPTS = 8  # to improve the order


@dataclass
class Use:
    """A storage, and the first and last step of each of its live ranges."""

    storage: Storage
    spans: Ranges
    before: int | None = None  # the node before whose backward these values are recomputed, possibly at another offset
    others: tuple[Storage, ...] = ()  # of the same size, that overwrite it one after the other

    def meets(self, other: Use) -> bool:
        """Whether both are live at some step."""
        return any(a <= d and c <= b for a, b in self.spans for c, d in other.spans)


def live_ranges(program: Program, again: Again) -> dict[Storage, Ranges]:
    """The live ranges of each storage."""
    ranges: dict[Storage, Ranges] = {}
    ends: dict[Storage, int] = {}
    for time, step in reversed(list(enumerate(program.steps(again)))):
        for storage in step.reads | step.writes:
            ends.setdefault(storage, time)
        for storage in step.writes:
            if storage not in step.reads:
                ranges.setdefault(storage, []).append((time, ends.pop(storage)))
    for storage, end in ends.items():
        ranges.setdefault(storage, []).append((0, end))
    return ranges


def peak(program: Program, again: Again) -> int:
    """The peak number of live bytes."""
    return peak_of([(storage.nbytes, spans) for storage, spans in live_ranges(program, again).items()])


def peak_of(uses: Iterable[tuple[int, Ranges]]) -> int:
    """The peak sum of the sizes that are live at one step."""
    changes: dict[int, int] = {}
    for size, spans in uses:
        for first, last in spans:
            changes[first] = changes.get(first, 0) + size
            changes[last + 1] = changes.get(last + 1, 0) - size
    return max(accumulate(changes[time] for time in sorted(changes)), default=0)


def uses(program: Program, again: Again) -> list[Use]:
    """One for each time that a storage's values are computed."""
    steps = program.steps(again)
    found = []
    for storage, spans in live_ranges(program, again).items():
        first, *others = sorted(spans)
        moves = [steps[start].before for start, _ in others]
        if None in moves:
            found.append(Use(storage, spans))
        else:
            found += [
                Use(storage, [span], before) for span, before in zip((first, *others), (None, *moves), strict=True)
            ]
    for storage, first_one in program.overwritten.items():
        use = next(use for use in found if use.storage is first_one)
        use.others += (storage,)
    return found


def layout(uses: list[Use]) -> tuple[list[int], int]:
    """Offsets of all uses in bytes, and the size of the arena.

    Each use in turn gets the lowest free offset, the largest first. After each attempt the uses at the end of the arena
    come first; the best attempt counts.
    """
    least = peak_of([(_rounded(use.storage.nbytes), use.spans) for use in uses])
    order = sorted(range(len(uses)), key=lambda number: (-uses[number].storage.nbytes, uses[number].spans))
    best, best_end = _layout(uses, order)
    offsets, end = best, best_end
    for _ in range(ATTEMPTS):
        if best_end == least:
            break
        order = sorted(order, key=lambda n: offsets[n] + uses[n].storage.nbytes <= end - STEP)
        offsets, end = _layout(uses, order)
        if end < best_end:
            best, best_end = offsets, end
    return best, best_end


def _layout(uses: list[Use], order: list[int]) -> tuple[list[int], int]:
    taken = np.empty((4, 0), np.int64)  # offset, end, first and last step of each span, by offset
    offsets = [0] * len(uses)
    for number in order:
        use, size = uses[number], _rounded(uses[number].storage.nbytes)
        meets = np.zeros(taken.shape[1], bool)
        for first, last in use.spans:
            meets |= (taken[2] <= last) & (taken[3] >= first)
        starts, ends = taken[:2, meets]
        free = np.maximum.accumulate(np.append(0, ends))  # from here on, up to the next start
        gaps = np.append(starts - free[:-1] >= size, True)
        offsets[number] = offset = int(free[gaps.argmax()])
        spans = np.array([(offset, offset + size, *span) for span in use.spans]).T
        position = np.searchsorted(taken[0], offset)
        taken = np.concatenate([taken[:, :position], spans, taken[:, position:]], axis=1)
    return offsets, int(taken[1].max(initial=0))


def _rounded(size: int) -> int:
    return -(-size // STEP) * STEP
