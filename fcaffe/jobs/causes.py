"""Causes of the end of a job, and the launcher's verdict on ranks that hang. Only ranks that train can hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fcaffe.jobs.ranks import Slot, names, numbers
from fcaffe.jobs.started import FATAL
from fcaffe.parallel.watchdog import TRAINING


@dataclass(frozen=True)
class Cause:
    """Why a job ends, as an agent tells it."""

    code: int = FATAL
    fault: bool = False  # it may not happen again, unlike an error
    message: str = ""
    signal: int = 0  # by which a process has ended, since it was asked to
    logged: bool = False  # by a rank
    source: str | None = None  # file and line of the error
    lost: bool = False  # a rank has lost its peer, which is most often the consequence of another cause


def hang_message(slots: Sequence[Slot], hosts: Sequence[str], timeout: float) -> str:
    """The message about the ranks that hang; empty if none does.

    A rank that waits for others does not hang, unless all ranks wait. A rank that loads may take its time, and others
    may wait for it.

    Args:
        slots: All ranks of the job, as they were last heard of.
        hosts: The host of each rank.
        timeout: In seconds; 0: none hangs.
    """
    late = [slot for slot in slots if slot.doing.state == TRAINING and 0 < timeout < slot.quiet]
    stuck = [slot for slot in late if slot.stopped] or [slot for slot in late if not slot.doing.waits]
    if not stuck and len(late) == len(hosts):
        stuck = [slot for slot in late if slot.doing.iteration == min(one.doing.iteration for one in late)]
    if not stuck:
        return ""
    waiting = sorted(slot.rank for slot in slots if slot.doing.waits and slot not in stuck)
    return (
        f"{names(stuck, hosts)} did not come out of {stuck[0].doing} within {timeout:g} s (--timeout)"
        + (": stopped by a signal (SIGSTOP)" if stuck[0].stopped else "")
        + (f"; waiting for it: {numbers(waiting)}" if waiting else "")
    )
