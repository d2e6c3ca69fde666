"""Live ranges: from which step of a program to which the values of each storage are wanted.

Of the program in `fcaffe.net.program`, whose steps read and write three storages:

    step        0     1     2     3     4
    y           W     r     .     r           wanted from 0 to 3
    p                 W     r                 wanted from 1 to 2
    dy                      W     r     r     wanted from 2 to 4

Values that are computed a second time are wanted in two stretches: from the forward step that writes them to the last
one that reads them, and from the step that writes them again to the last backward step that reads them. In between
their memory is free.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from fcaffe.net.program import Again, Program

Ranges = list[tuple[int, int]]  # first and last step of each stretch in which a storage's values are wanted


def live_ranges(program: Program, again: Again) -> dict[int, Ranges]:
    """For each storage, by its id, from each step that writes it afresh to the last that reads what was written."""
    ranges: dict[int, Ranges] = {}
    ends: dict[int, int] = {}
    for time, step in reversed(list(enumerate(program.steps(again)))):
        for key in step.reads | step.writes:
            ends.setdefault(key, time)
        for key in step.writes - step.reads:
            ranges.setdefault(key, []).append((time, ends.pop(key)))
    for key, end in ends.items():
        ranges.setdefault(key, []).append((0, end))
    return ranges


def fullest(program: Program, again: Again) -> tuple[int, set[int]]:
    """The bytes of all values that are wanted at one time, at most, and the storages that they are in."""
    ranges = live_ranges(program, again)
    peak, time = peak_of([(program.storages[key].nbytes, spans) for key, spans in ranges.items()])
    return peak, {key for key, spans in ranges.items() if any(a <= time <= b for a, b in spans)}


def peak_of(uses: Iterable[tuple[int, Ranges]]) -> tuple[int, int]:
    """What the sizes of all that are in use at one time add up to, at most, and the step when they do."""
    changes: dict[int, int] = {}
    for size, spans in uses:
        for first, last in spans:
            changes[first] = changes.get(first, 0) + size
            changes[last + 1] = changes.get(last + 1, 0) - size
    times = sorted(changes)
    sums = accumulate(changes[time] for time in times)
    return max(zip(sums, times, strict=True), key=lambda item: item[0], default=(0, 0))
