"""Live ranges of storages: from the step that writes the values to the last step that reads them.

Of the program in `fcaffe.net.run.program`, whose steps read and write three storages:

    step        0     1     2     3     4
    y           W     r     .     r           live from 0 to 3
    p                 W     r                 live from 1 to 2
    dy                      W     r     r     live from 2 to 4

Recomputed values have two live ranges: from the forward step that writes them to the last one that reads them, and from
the step that recomputes them to the last backward step that reads them. In between their memory is free.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from fcaffe.net.blob import Storage
from fcaffe.net.run.program import Again, Program

Ranges = list[tuple[int, int]]  # first and last step of each live range of a storage


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
