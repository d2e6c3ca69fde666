"""Offsets of storages in one arena, such that no two live storages overlap.

A worked example, with the live ranges of `fcaffe.net.program`: y (8 MB, steps 0 to 3), p (1 MB, 1 to 2), dy (8 MB, 2 to
4) and a gradient dx (6 MB, 5 to 6) need 17 MB, not 23:

    offset  0        8        16  17 MB
            | y      | dy     | p |       steps 0 to 4
            | dx   |                      steps 5 to 6
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from fcaffe.net.plan.live_ranges import Ranges, live_ranges, peak_of
from fcaffe.net.program import Again, Program
from fcaffe.net.storage import Storage

STEP = 256  # bytes; offsets in the arena are its multiples, which suits vector units of CPUs and GPUs

ATTEMPTS = 8  # to improve the order


@dataclass
class Use:
    """A storage, and the first and last step of each of its live ranges."""

    storage: Storage
    spans: Ranges
    before: int | None = None  # the node before whose backward these values are recomputed, possibly at another offset

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
    return found


def layout(uses: list[Use]) -> tuple[list[int], int]:
    """Offsets of all uses in bytes, and the size of the arena.

    Each use in turn gets the lowest free offset, the largest first. After each attempt the uses at the end of the arena
    come first; the best attempt counts.
    """
    least = peak_of([(_rounded(use.storage.nbytes), use.spans) for use in uses])[0]
    order = sorted(range(len(uses)), key=lambda number: (-uses[number].storage.nbytes, uses[number].spans))
    best, best_end = _layout(uses, order)
    offsets, end = best, best_end
    for _ in range(ATTEMPTS):
        if best_end == least:
            break
        highest = [n for n in order if offsets[n] + uses[n].storage.nbytes > end - STEP]
        order = highest + [n for n in order if n not in highest]
        offsets, end = _layout(uses, order)
        if end < best_end:
            best, best_end = offsets, end
    return best, best_end


def _layout(uses: list[Use], order: list[int]) -> tuple[list[int], int]:
    taken: list[tuple[int, int, int]] = []  # offset, end, number; by offset
    offsets = [0] * len(uses)
    for number in order:
        size = _rounded(uses[number].storage.nbytes)
        offset = 0
        for other_offset, other_end, other in taken:
            if other_end > offset and uses[other].meets(uses[number]):
                if other_offset - offset >= size:
                    break
                offset = other_end
        insort(taken, (offset, offset + size, number))
        offsets[number] = offset
    return offsets, max((end for _, end, _ in taken), default=0)


def _rounded(size: int) -> int:
    return -(-size // STEP) * STEP
