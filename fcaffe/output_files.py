"""Files that appear whole or not at all.

Each is written under a temporary name, which says who writes: the machine, since when it has been up and which process
numbers count (in a container they are others than outside), the process, and when that began. So the next one to write
there can tell that a writer was killed, and remove what it left. Files of other machines and containers stay: nobody
here knows whether their writers live, and a lock may not reach from one machine to another.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fcaffe import log
from fcaffe.errors import FcaffeError

_NAME = re.compile(r"\.(?P<target>.*)\.(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-(?P<began>\d+)\.tmp", re.DOTALL)
_LONGEST = 200  # bytes of the target's name; file systems take 255 in all


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], noun: str = "file", error: type[FcaffeError] = FcaffeError
) -> Iterator[Path]:
    """A temporary path beside `path`, for the body to write; it takes the place of `path` when the body is done. A
    device or a pipe, such as /dev/null or /dev/stdout, stays and is given what the body has written.

    If anything fails, the temporary file goes and an old file at `path` stays as it was. An OSError (no space, no
    permission, no such folder) becomes an `error` that names `path`; `noun` says what was being written.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    stays = _takes_bytes(path)
    folder = Path(tempfile.gettempdir()) if stays else target.parent
    temporary = folder / temporary_name(target.name)  # of / too, which has no name to replace
    try:
        yield temporary
        if stays:
            with open(temporary, "rb") as written, _opened(path) as stream:
                shutil.copyfileobj(written, stream)
            temporary.unlink()
            return
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            limit = " (ulimit -f limits the size of files)" if problem.errno == errno.EFBIG else ""
            raise error(
                f"cannot write {path}: {problem.strerror or problem}; make room there{limit} or name another place for "
                f"the {noun} (an earlier file of that name is as it was)"
            ) from problem
        raise


def _takes_bytes(path: str | os.PathLike[str]) -> bool:
    """Whether a device, a pipe or the like is there; as root one could replace even those by a file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    """To write into it. A pipe that nobody reads is an OSError, rather than something to wait for."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return open(descriptor, "wb")


def temporary_name(target: str) -> str:
    """The name under which this process writes what is to become the file `target`, in the same folder."""
    target = os.fsdecode(os.fsencode(target)[:_LONGEST])
    return f".{target}.{_machine()}-{os.getpid()}-{_began(os.getpid())}.tmp"


@contextlib.contextmanager
def temporary_folder(target: str, mode: int = 0o777) -> Iterator[str]:
    """Yields a new folder beside `target`. It is removed at the end, or by the next process if this one is killed."""
    remove_leftovers(target, tell=False)
    folder, name = os.path.split(os.path.realpath(target))
    for number in itertools.count():
        path = os.path.join(folder, temporary_name(f"{name}-{number}"))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
            break
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_leftovers(target: str, tell: bool = True) -> None:
    """Remove what dead processes of this machine left of files whose paths begin with `target`; the log may `tell`."""
    folder, beginning = os.path.split(os.path.realpath(target))
    if target.endswith("/"):
        folder, beginning = os.path.join(folder, beginning), ""
    removed = []
    with contextlib.suppress(OSError):  # no folder, or one that may not be read: there is nothing to remove
        for name in os.listdir(folder):
            match = _NAME.fullmatch(name)
            if match is None or not match["target"].startswith(beginning) or match["machine"] != _machine():
                continue
            if _is_dead(int(match["process"]), int(match["began"])):
                with contextlib.suppress(OSError):  # another worker was faster, or the folder may not be written
                    path = os.path.join(folder, name)
                    (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)
                    removed.append(match["target"])
    if removed and tell:
        log.info(f"Removed unfinished files of processes that were killed: {', '.join(sorted(removed))} in {folder}")


@functools.lru_cache(maxsize=1)
def _machine() -> str:
    """A short name for this boot of this machine and this container: within it a process number means one process."""
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
    """Whether the process that had this number and began then has ended; another one may have the number by now."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass  # it lives, and belongs to somebody else
    fields = _stat(process)
    return bool(fields) and (fields[0] in "ZX" or (began > 0 and int(fields[19]) != began))
