"""The engine lock: one thread at a time, reentrant, released around user code."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

from fcaffe.net.script.engine_lock import EngineLock

THREADS = 5


def test_one_thread_at_a_time_holds_it() -> None:
    """Threads that release it at random, around calls of their own among others."""
    lock = EngineLock()
    holders: list[object] = []

    def call(chance: random.Random, depth: int) -> None:
        own = object()
        with lock, lock:
            holders.append(own)
            for _ in range(chance.randint(0, 3)):
                assert holders == [own], "two threads hold it"
                holders.remove(own)
                with lock.released():
                    time.sleep(chance.uniform(0, 0.002))
                    if depth and chance.random() < 0.5:
                        call(chance, depth - 1)
                holders.append(own)
            holders.remove(own)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(20):
            call(chance, depth=2)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(work, range(THREADS)))
    assert not holders


def test_releasing_it_without_holding_it() -> None:
    lock = EngineLock()
    with lock.released(), lock, lock.released(), lock:
        pass
