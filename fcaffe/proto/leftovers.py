"""Temporary files that processes left behind which were killed while they wrote.

The name of a temporary file says who writes it: the machine, since when it has been up and which process numbers count
(in a container they are others than outside), the process, and when that began. So the next one to write there can tell
that the writer is dead. Files of other machines and containers stay: nobody here knows whether their writers live.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import socket

from fcaffe import log

_NAME = re.compile(r"\.(?P<target>.*)\.(?P<place>[0-9a-f]{8})-(?P<process>\d+)-(?P<began>\d+)\.tmp", re.DOTALL)
_LONGEST = 200  # bytes of the target's name; file systems take 255 in all


def temporary_name(target: str) -> str:
    """The name under which this process writes what is to become the file `target`, in the same folder."""
    target = os.fsdecode(os.fsencode(target)[:_LONGEST])
    return f".{target}.{_place()}-{os.getpid()}-{_began(os.getpid())}.tmp"


def remove_leftovers(target: str) -> None:
    """Remove what dead processes of this machine left of files whose paths begin with `target`; the log tells."""
    folder, beginning = os.path.split(os.path.realpath(target))
    if target.endswith("/"):
        folder, beginning = os.path.join(folder, beginning), ""
    removed = []
    with contextlib.suppress(OSError):  # no folder, or one that may not be read: there is nothing to remove
        for name in os.listdir(folder):
            match = _NAME.fullmatch(name)
            if match is None or not match["target"].startswith(beginning) or match["place"] != _place():
                continue
            if _is_dead(int(match["process"]), int(match["began"])):
                with contextlib.suppress(OSError):  # another worker was faster, or the folder may not be written
                    os.unlink(os.path.join(folder, name))
                    removed.append(match["target"])
    if removed:
        log.info(f"Removed unfinished files of processes that were killed: {', '.join(sorted(removed))} in {folder}")


@functools.lru_cache(maxsize=1)
def _place() -> str:
    """What makes process numbers mean something: this boot of this machine, and this container."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            words = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        words = socket.gethostname()
    return hashlib.sha256(words.encode()).hexdigest()[:8]


def _stat(process: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where there is no such file."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _began(process: int) -> int:
    """When it began, in ticks since the machine did; 0 if unknown."""
    fields = _stat(process)
    return int(fields[19]) if fields else 0


def _is_dead(process: int, began: int) -> bool:
    """Whether the process that began then has ended; another one may have its number by now."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass  # it lives, and belongs to somebody else
    fields = _stat(process)
    return bool(fields) and (fields[0] in "ZX" or (began > 0 and int(fields[19]) != began))
