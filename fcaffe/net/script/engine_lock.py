"""The engine lock: one thread of a program at a time uses the engine, whose memory and state all nets share."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


class EngineLock:
    """A reentrant lock that a thread releases while it runs user code: a Python layer may wait for other threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = 0
        self._depth = 0  # how often the owner has acquired it

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner, self._depth = threading.get_ident(), self._depth + 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
        self._lock.release()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """In its body other threads may hold the lock, whether this thread holds it or not."""
        depth = self._depth if self._owner == threading.get_ident() else 0
        for _ in range(depth):
            self.__exit__()
        try:
            yield
        finally:
            for _ in range(depth):
                self.__enter__()


_lock = EngineLock()


def engine_lock() -> EngineLock:
    """The lock of this process: `with engine_lock():` its body uses the engine for user code."""
    return _lock


def _renew() -> None:
    """In a forked process, where no other thread can release the lock any more."""
    global _lock
    _lock = EngineLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
