"""Outlet: standard output, standard error or a log file, as a stream that survives write errors."""

from __future__ import annotations

import io
import os
import select
from collections.abc import Callable
from typing import Any


class Outlet(io.RawIOBase):
    """An open file whose disk may fill up, whose terminal may close, or whose reader may exit.

    A `lasting` outlet ignores write errors. It discards the text, tries again with the next one, and after a success
    first writes `notice(lines, reason)`, which says how many lines are missing. Another outlet raises the OSError with
    its own name as the file name. `problem` is the error of the last write, or None.
    """

    def __init__(
        self,
        descriptor: int,
        name: str,
        lasting: bool = True,
        notice: Callable[[int, str], str] = lambda lines, reason: "",
    ) -> None:
        self.name = name
        self.lasting = lasting
        self.problem: OSError | None = None
        self._descriptor = descriptor
        self._notice = notice
        self._missing = 0  # lines
        self._torn = False  # whether the last write ended within a line

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
            except BlockingIOError:  # another program has set it to non-blocking: wait for it
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
