"""Waiting that leaves the core to those who work.

MPI's own waiting polls without end. Where ranks share cores, or the gradients of one layer travel while the next one is
computed, a waiting rank so takes up to half a core from a working one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

POLLS = 400  # before the first sleep: some 0.2 ms, longer than a short message takes
SHORTEST, LONGEST = 50e-6, 200e-6  # seconds of a sleep; the kernel adds some 50e-6

_offer_core: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))


def wait_until(done: Callable[[], bool]) -> None:
    """Poll `done` until it is true: first as often as other ranks leave the core to us, then between sleeps."""
    for _ in range(POLLS):
        if done():
            return
        _offer_core()
    pause = SHORTEST
    while not done():
        time.sleep(pause)
        pause = min(1.1 * pause, LONGEST)
