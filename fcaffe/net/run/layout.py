"""Offsets of storages in one arena, such that no two live storages overlap.

A worked example, with live ranges (`fcaffe.net.run.program`): y (8 MB, steps 0 to 3), p (1 MB, 1 to 2), dy (8 MB, 2 to
4) and a gradient dx (6 MB, 5 to 6) need 17 MB, not 23:

    offset  0        8        16  17 MB
            | y      | dy     | p |       steps 0 to 4
            | dx   |                      steps 5 to 6
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fcaffe.net.blob import Storage
from fcaffe.net.run.live_ranges import Ranges, live_ranges, peak_of
from fcaffe.net.run.program import Again, Program

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
