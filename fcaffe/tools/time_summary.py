"""Summary of the time of a training, for the end of its log."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from fcaffe.timeline import BACKWARD, FORWARD, KINDS

COLUMNS = f"{'':<16}{'share':>8}{'min':>10}{'median':>10}{'max':>10}"


def summarize(everyone: Sequence[dict[str, float]], hosts: Sequence[str]) -> list[str]:
    """Lines for the log, from the `seconds` of each worker's timeline and its host.

    For several workers each line has a share of the total time, and the minimum, median and maximum over the workers.
    The slowest worker is the one with the most seconds in forward and backward.
    """
    total = sum(sum(seconds.values()) for seconds in everyone) or 1e-9
    kinds = [kind for kind in KINDS if any(seconds[kind] for seconds in everyone)]
    if len(everyone) == 1:
        parts = [f"{kind} {everyone[0][kind]:.2f} s ({everyone[0][kind] / total:.1%})" for kind in kinds]
        return [f"Training took {total:.2f} s: {', '.join(parts)}"]
    lines = [f"Training took {total / len(everyone):.2f} s; seconds of each of {len(everyone)} workers:", COLUMNS]
    for kind in kinds:
        values = [seconds[kind] for seconds in everyone]
        share = sum(values) / total
        lines.append(f"{kind:<16}{share:>8.1%}{min(values):>10.2f}{median(values):>10.2f}{max(values):>10.2f}")
    work = [seconds[FORWARD] + seconds[BACKWARD] for seconds in everyone]
    slowest, middle = work.index(max(work)), median(work)
    more = f", {work[slowest] / middle - 1:.1%} more than the median" if middle else ""
    lines.append(
        f"Slowest worker: rank {slowest} on {hosts[slowest]}, {work[slowest]:.2f} s in forward and backward{more}"
    )
    return lines
