"""Waiting that leaves the core to other ranks and threads.

MPI's own waiting polls without end. Where ranks share cores, or the gradients of one layer travel while the next one is
computed, a waiting rank takes up to half a core from a working one. `wait_until` polls for a short time and then
sleeps. A message from another host ends a sleep: MPI hears of messages over TCP by instances of Linux's epoll, and
`select` waits for these.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence

POLLS = 400  # before the first sleep: some 0.2 ms, longer than a short message takes
SHORTEST, LONGEST = 50e-6, 200e-6  # seconds of a sleep; the kernel adds some 50e-6

_offer_core: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))
_events: list[int] = []  # file descriptors that become readable when there is something for MPI to do


def end_sleeps_by(descriptors: Sequence[int]) -> None:
    """Let sleeps end when one of these becomes readable."""
    _events[:] = [one for one in descriptors if one < 1024]  # `select` takes no others


def wait_until(done: Callable[[], bool]) -> None:
    """Call `done` until it returns True, and leave the core to others between two calls."""
    for _ in range(POLLS):
        if done():
            return
        _offer_core()
    pause = SHORTEST
    while not done():
        select.select(_events, (), (), pause)
        pause = min(1.1 * pause, LONGEST)
