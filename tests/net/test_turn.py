"""Turns: one thread at a time, calls within one another end in the reverse order of their beginnings."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

from fcaffe.net.turn import Turn

THREADS = 5


def test_calls_end_in_the_reverse_order_of_their_beginnings() -> None:
    """Of threads that lend their turn at random, to one another and to calls of their own."""
    turn = Turn()
    calls: list[object] = []
    most = [0]

    def call(chance: random.Random, depth: int) -> None:
        own = object()
        with turn, turn:  # a thread may take its turn several times
            calls.append(own)
            most[0] = max(most[0], len(calls))
            for _ in range(chance.randint(0, 3)):
                with turn.lend():
                    time.sleep(chance.uniform(0, 0.002))
                    if depth and chance.random() < 0.5:
                        call(chance, depth - 1)
                assert calls[-1] is own, "a call goes on amid another one"
            assert calls.pop() is own

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(20):
            call(chance, depth=2)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(work, range(THREADS)))
    assert most[0] > 3 and not calls


def test_who_has_no_turn_has_none_to_lend() -> None:
    turn = Turn()
    with turn.lend(), turn, turn.lend(), turn:
        pass
