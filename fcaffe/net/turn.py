"""Whose turn it is: one thread of a program at a time uses the engine, whose memory and state all nets share."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


class Turn:
    """A lock that a thread may take several times, and lend to other threads while it runs user code.

    In Caffe no other thread runs Python until a call is done, but for the time in which the call is in user code. So it
    is here: a Python layer may wait for threads that fill its tops, or run nets. A turn that was lent comes back when
    the calls that other threads have begun meanwhile are done: like the calls of one thread within one another, the
    last one to begin ends first, so that each finds the engine's state as it has left it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._returned = threading.Condition(self._lock)
        self._owner = 0
        self._depth = 0
        self._lent: list[object] = []  # a mark for each lending, the latest last

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if self._owner == thread:
            self._depth += 1
            return
        self._lock.acquire()
        self._owner, self._depth = thread, 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            self._lock.release()

    @contextlib.contextmanager
    def lend(self) -> Iterator[None]:
        """Let other threads have the turn during the body, if it is this thread's."""
        thread = threading.get_ident()
        if self._owner != thread:
            yield
            return
        depth, mark = self._depth, object()
        self._lent.append(mark)
        self._owner = 0
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            while self._lent[-1] is not mark:
                self._returned.wait()
            self._lent.pop()
            self._returned.notify_all()
            self._owner, self._depth = thread, depth


_turn = Turn()


def in_turn() -> Turn:
    """`with in_turn():` its body uses the engine on behalf of user code."""
    return _turn


def _renew() -> None:
    """In a process that was forked, in which no other thread can end its turn any more."""
    global _turn
    _turn = Turn()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
