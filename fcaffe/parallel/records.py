"""Records that ranks and agents send to the launcher: how far training is, and why the job ends.

A record is one line of JSON behind a mark. It goes to standard error, because mpiexec passes on no other pipe, and so
that it arrives after everything that its sender has written before.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from fcaffe import log

MARK = b"\x1efcaffe "
FATAL = 134  # exit code of a job that an error or a fault has ended


def send(record: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody reads any more
        os.write(2, MARK + json.dumps(record).encode() + b"\n")


def split(line: bytes) -> tuple[bytes, dict[str, Any] | None]:
    """The text of a line before its record, and the record; None if it has none."""
    text, mark, content = line.partition(MARK)
    if mark:
        with contextlib.suppress(ValueError):
            return text, dict(json.loads(content))
    return line, None


def tell_fault(message: str, launched: bool) -> None:
    """Say why the job ends: to fcaffe's launcher if there is one, else in the log."""
    if launched:
        send({"code": FATAL, "fault": True, "message": message})
    else:
        log.fatal(message)
