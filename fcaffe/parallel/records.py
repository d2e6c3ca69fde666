"""Records that ranks and agents send to the launcher: state of the ranks, progress of the training, cause of the end.

A record is one line of JSON behind a mark. It goes to standard error, because ssh and mpiexec pass on no other pipe.
There it also arrives after all earlier output of its sender. The launcher sends orders to agents as lines of JSON on
their standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from typing import Any

MARK = b"\x1efcaffe "
LONGEST = 4096  # bytes that go into a pipe at once, without the words of another process between them
FATAL = 134  # exit code of a job that an error or a fault has ended


def send(record: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody reads any more
        os.write(2, MARK + json.dumps(record).encode() + b"\n")


def send_items(name: str, items: Iterable[Any], **last: Any) -> None:
    """Send a list of any length in records {name: [...]} that are each below LONGEST; the last has `last`, too."""
    part: list[Any] = []
    length = 0
    for item in items:
        more = len(json.dumps(item)) + 2
        if length + more > LONGEST - 200:
            send({name: part})
            part, length = [], 0
        part.append(item)
        length += more
    send({name: part, **last})


class Orders:
    """Reader of the launcher's orders to an agent, which come to standard input unless another descriptor is given."""

    def __init__(self, source: int = 0) -> None:
        self.source = source
        self._rest = b""

    def read(self) -> list[dict[str, Any]] | None:
        """Wait for input; return the complete orders in it, None at its end."""
        try:
            data = os.read(self.source, 1 << 16)
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


def split(line: bytes) -> tuple[bytes, dict[str, Any] | None]:
    """The text of a line before its record, and the record; None if it has none."""
    text, mark, content = line.partition(MARK)
    if mark:
        with contextlib.suppress(ValueError):
            return text, dict(json.loads(content))
    return line, None
