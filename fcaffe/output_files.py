"""Output files that appear complete or not at all, and that replace only files of their own kind.

Each is written under a temporary name, which identifies the writer: the machine's boot and container, the process, and
the time when that began. So the next writer can tell that a writer was killed, and remove its unfinished file. Files of
other machines and containers stay, because their processes cannot be checked from here.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fcaffe import log
from fcaffe.errors import FcaffeError, UsageError

_NAME = re.compile(r"\.(?P<target>.*)\.(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-(?P<began>\d+)\.tmp", re.DOTALL)
_LONGEST = 200  # bytes of the target's name; file systems allow 255 in all
_FULL = 1 << 20  # free bytes of a disk that counts as full
_START = 1 << 16  # bytes of a file that tell its kind


class Kind(NamedTuple):
    """A kind of output file. `recognises` tells from a path whether the file there is of this kind.

    `endings` are those that the name of a new file must have one of; () allows any.
    """

    noun: str
    recognises: Callable[[str], bool]
    endings: tuple[str, ...] = ()


def starting(noun: str, pattern: bytes, *endings: str) -> Kind:
    """The kind of the files whose beginning matches a regular expression."""

    def recognises(path: str) -> bool:
        with open(path, "rb") as file:
            return re.match(pattern, file.read(_START), re.DOTALL | re.MULTILINE) is not None

    return Kind(noun, recognises, endings)


ARRAY = starting("NumPy array", b"\x93NUMPY")
HDF5 = starting("HDF5 file", b"\x89HDF\r\n\x1a\n")
PICTURE = starting(  # also in Graphviz's language
    "picture",
    rb"\x89PNG|\xff\xd8\xff|%PDF|%!PS|GIF8|BM|II\*\0|MM\0\*|RIFF|\s*(<(\?xml|!DOCTYPE svg|!--|svg)|(di)?graph\b)",
)


def check_output(path: str, kind: Kind, *inputs: str) -> None:
    """Raise UsageError if a command may not write a file of this kind to `path`.

    The path must not be one of the command's `inputs`, nor an existing file of another kind. Empty files, devices and
    pipes may be written, and an empty `path` stands for no file.
    """
    regular = os.path.isfile(path)
    if not path or (os.path.exists(path) and not regular):
        return
    if kind.endings and not path.endswith(kind.endings):
        raise UsageError(f"{path}: the name of a {kind.noun} ends in {' or '.join(kind.endings)}")
    if os.path.realpath(path) in map(os.path.realpath, inputs):
        raise UsageError(f"{path} is another file of this command; give another path for the {kind.noun}")
    if regular and os.path.getsize(path) and not kind.recognises(path):
        raise UsageError(f"{path} exists and is no {kind.noun}; give another path, or move that file away")


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], noun: str = "file", error: type[FcaffeError] = FcaffeError
) -> Iterator[Path]:
    """Yield a temporary path beside `path` for the body to write, and rename it to `path` after the body.

    A device or a pipe, such as /dev/stdout, is not replaced: the body's file is copied into it. If anything fails, the
    temporary file is removed and an old file at `path` stays. Unfinished files of killed writers of `path` are removed
    first. An OSError (no space, no permission, no such folder) becomes an `error` that names `path` and the `noun` that
    was written.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    stays = _takes_bytes(path)
    if not stays:
        remove_leftovers(str(target))
    # Others can write to the folder of temporary files too, so a new folder there hides the file from them.
    folder = Path(tempfile.mkdtemp()) if stays else target.parent
    temporary = folder / temporary_name(target.name)  # also for the path /, which has no name
    try:
        yield temporary
        if stays:
            with open(temporary, "rb") as written, _opened(path) as stream:
                shutil.copyfileobj(written, stream)
            return
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise error(
                f"cannot write {path}: {reason_and_remedy(problem, target)}, or name another path for the {noun} (an "
                "earlier file of that name is as it was)"
            ) from problem
        raise
    finally:
        if stays:
            shutil.rmtree(folder, ignore_errors=True)


def reason_and_remedy(problem: Exception, path: str | os.PathLike[str]) -> str:
    """Why a file or folder cannot be written, and what helps. A library may not say that a disk is full."""
    folder = os.path.dirname(os.path.abspath(path))
    number = problem.errno if isinstance(problem, OSError) else None
    if number == errno.ENOENT and not os.path.isdir(folder):
        return f"the folder {folder} does not exist; create it"
    with contextlib.suppress(OSError):
        if number in (None, errno.EIO) and shutil.disk_usage(folder).free < _FULL:
            number = errno.ENOSPC
    remedies = {
        errno.ENOSPC: "make room there",
        errno.EDQUOT: "make room in your quota",
        errno.EFBIG: "raise the limit of the size of files (ulimit -f)",
        errno.EISDIR: "name a file in that folder",
    }
    reason = os.strerror(number) if number else " ".join(str(problem).split())
    return f"{reason}; {remedies.get(number or 0, 'make that possible')}"


def _takes_bytes(path: str | os.PathLike[str]) -> bool:
    """Whether the path is a device, a pipe or the like, which root could replace by a file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a device or pipe for writing. Raises OSError for a pipe without a reader, instead of waiting."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return open(descriptor, "wb")


def temporary_name(target: str) -> str:
    """Return the temporary name, in the same folder, under which this process writes the file `target`."""
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
    """Remove unfinished files of dead processes of this machine whose targets begin with `target`; `tell` logs it."""
    folder, beginning = os.path.split(os.path.realpath(target))
    if target.endswith("/"):
        folder, beginning = os.path.join(folder, beginning), ""
    removed = []
    with contextlib.suppress(OSError):  # the folder is missing or unreadable
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
    """Return a hash of this boot and this container, within which process numbers are unique."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            words = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        words = socket.gethostname()
    return hashlib.sha256(words.encode()).hexdigest()[:8]


def _stat(process: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if there is no such file."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _began(process: int) -> int:
    """Return the start time of a process, in ticks since the boot; 0 if unknown."""
    fields = _stat(process)
    return int(fields[19]) if fields else 0


def _is_dead(process: int, began: int) -> bool:
    """Whether the process of this number and start time has ended; another may have the number now."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass  # it is alive, and belongs to another user
    fields = _stat(process)
    return bool(fields) and (fields[0] in "ZX" or (began > 0 and int(fields[19]) != began))
