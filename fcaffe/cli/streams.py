"""The standard streams of the command line.

A full disk or a closed terminal must not end a training that only logs there. A command whose purpose is to print must
fail where it cannot.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO

from fcaffe import log
from fcaffe.log.lines import Outlet

_output: Outlet | None = None


def begin() -> None:
    """Wrap the process's standard output and error in Outlets; a test's or notebook's streams stay as they are.

    Descriptors 0 to 2 that were closed at the start (`2>&-`) are opened on /dev/null. Otherwise the next file to be
    opened, such as a snapshot, would get that number, and prints would go into it. Standard output gets /dev/null for
    reading, so that writing there still fails.
    """
    global _output
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)
            os.dup2(opened, number)
            os.set_inheritable(number, True)
            if opened != number:
                os.close(opened)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    if sys.stdout is sys.__stdout__:
        _output = Outlet(1, "standard output", lasting=False)
        sys.stdout = _text(_output, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(log.standard_error, sys.stderr)


def _text(outlet: Outlet, before: Any) -> TextIO:
    """Return a text stream on the outlet, with the encoding and buffering of the stream before.

    Characters outside that encoding are escaped.
    """
    encoding, by_lines = "utf-8", False
    if before is not None:
        before.flush()
        encoding, by_lines = before.encoding, before.line_buffering or before.write_through
    return io.TextIOWrapper(io.BufferedWriter(outlet), encoding, "backslashreplace", line_buffering=by_lines)


def outlast_output() -> None:
    """Let failed writes to standard output pass from now on.

    Call this for a command whose purpose is not to print, or once the failure has been reported.
    """
    if _output is not None:
        _output.lasting = True


def error_fails() -> bool:
    """Whether the last write to standard error failed, though its reader is still there."""
    problem = log.standard_error.problem
    return problem is not None and problem.errno != errno.EPIPE
