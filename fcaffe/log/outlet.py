"""Where a run writes text on its way: standard output, standard error and log files."""

from __future__ import annotations

import io
import os
import select
from collections.abc import Callable
from typing import Any


def _no_notice(lines: int, reason: str) -> str:
    return ""


class Outlet(io.RawIOBase):
    """An open file whose disk may fill up, whose terminal may be closed, whose reader may go away.

    A lasting one does not let that end a run: it drops what cannot be written, tries again with the next text, and when
    that succeeds puts `notice(lines, reason)` before it, which says how many lines are missing. One that does not last
    raises the OSError, with its own name as the file's. `problem` is why the last write failed, None if it did not.
    """

    def __init__(
        self, descriptor: int, name: str, lasting: bool = True, notice: Callable[[int, str], str] = _no_notice
    ) -> None:
        self.name = name
        self.lasting = lasting
        self.problem: OSError | None = None
        self._descriptor = descriptor
        self._notice = notice
        self._missing = 0  # lines
        self._torn = False  # whether what was written last is no whole line

    def write(self, data: Any) -> int:
        content = bytes(data)
        try:
            if self.problem is not None:
                self._put(self._gap())
                self.problem, self._missing = None, 0
            self._put(content)
        except OSError as problem:
            self.problem = problem
            self._missing += content.count(b"\n")
            if not self.lasting:
                reason = f"{problem.strerror}; send it to where it can be written"
                raise OSError(problem.errno, reason, self.name) from problem
        return len(content)

    def _gap(self) -> bytes:
        assert self.problem is not None
        notice = self._notice(self._missing, self.problem.strerror or str(self.problem)) if self._missing else ""
        return b"\n" * self._torn + notice.encode()

    def _put(self, content: bytes) -> None:
        while content:
            try:
                done = os.write(self._descriptor, content)
            except BlockingIOError:  # another program has made it non-blocking: wait as a blocking one would
                waiting = select.poll()
                waiting.register(self._descriptor, select.POLLOUT)
                waiting.poll()
                continue
            self._torn = content[done - 1] != ord("\n")
            content = content[done:]

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)
