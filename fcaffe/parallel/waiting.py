"""Waiting that leaves the core to those who work.

MPI's own waiting polls without end. Where ranks share cores, or the gradients of one layer travel while the next one is
computed, a waiting rank so takes up to half a core from a working one. Here it sleeps, until a message wakes it: what
MPI hears of messages from other hosts by, over TCP, are instances of Linux's epoll, and these can be waited for.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence

POLLS = 400  # before the first sleep: some 0.2 ms, longer than a short message takes;
FEW = 10  # where messages end sleeps: some 20e-6 s, what a short message takes to a rank with a core of its own
TAKEN = 50e-6  # seconds for which a core that was offered is gone if somebody has taken it; else it is one
SHORTEST, LONGEST = 50e-6, 200e-6  # seconds of a sleep that nothing may end early; the kernel adds some 50e-6
PATIENT = 2e-3  # seconds of one that messages have ended early so far

_offer_core: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))
_events: list[int] = []  # file descriptors that become readable when there is something for MPI to do
_longest = LONGEST  # of a sleep, as sleeps so far have ended
_waiting: set[int] = set()  # threads, by their numbers


def end_sleeps_by(descriptors: Sequence[int]) -> None:
    """Let sleeps end when one of these becomes readable."""
    _events[:] = [one for one in descriptors if one < 1024]  # `select` takes no others


def wait_until(done: Callable[[], bool], by_message: bool = True) -> None:
    """Poll `done` until it is true: first as often as other ranks leave the core to us, then between sleeps.

    `by_message`: it is a message of MPI that makes it true, which may end a sleep.
    """
    global _longest
    for _ in range(FEW if by_message and _longest > LONGEST else POLLS):
        if done():
            return
        offered = time.perf_counter()
        _offer_core()
        if by_message and _longest > LONGEST and time.perf_counter() - offered > TAKEN:
            break  # polling would be at the cost of another, and a message ends our sleep
    pause = SHORTEST
    _waiting.add(threading.get_ident())
    try:
        while not done():
            others = len(_waiting) > 1
            if not by_message:
                time.sleep(pause)
            # what came while we waited for a core, after the sleep, would have ended it as well
            elif _heard(_longest if _longest > LONGEST and not others else pause) or _heard(0):
                _longest = min(2 * _longest, PATIENT)
                if others:
                    _offer_core()  # what was heard of may be for another thread to take
            elif done():  # what came has not ended the sleep: it came by shared memory, or to another thread
                _longest = LONGEST
                return
            pause = min(1.1 * pause, LONGEST)
    finally:
        _waiting.discard(threading.get_ident())


def _heard(seconds: float) -> bool:
    """Sleep for so long, or until there is something for MPI to do; whether there is."""
    return bool(select.select(_events, (), (), seconds)[0])
