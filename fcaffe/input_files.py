"""Files that a user names as input, opened so that reading them comes to an end.

A path may name something else than a file. A device such as /dev/zero has no end and is refused. A pipe is read whole,
since `--solver <(sed ... solver.prototxt)` and /dev/stdin are pipes; but nobody waits for ever for what comes from it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from fcaffe import log
from fcaffe.errors import FcaffeError

LARGEST = 2**31 - 1  # bytes that are taken from a pipe
UNOPENED = 1.0  # seconds within which somebody must have opened a pipe for writing
SILENT = 60.0  # seconds within which somebody who has opened it must have written something
TOLD = 1.0  # seconds of waiting after which the log says so
STEP = 0.05  # seconds between two looks at a pipe that nobody has opened

# zlib packs about a thousandfold at most; a file that says it holds more is damaged, and nobody allocates for it.
MOST_PACKED = 2000

Path = str | os.PathLike[str]

_seen: dict[tuple[int, int], bytes] = {}  # what pipes held that were looked into and not yet read, by device and inode


def open_input(path: Path, most: int = LARGEST, look: bool = False) -> BinaryIO:
    """The file of this name, opened for reading, or what a pipe of this name has brought until its end.

    Whoever only wants to `look` what it is leaves a pipe's content to the next one who opens it. Raises OSError, whose
    text says what is wrong, if there is no file, or a device, or a pipe that brings nothing or more than `most` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without O_NONBLOCK a pipe would make this call wait
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            os.set_blocking(descriptor, True)
            return open(os.dup(descriptor), "rb")
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISFIFO(status.st_mode):
            raise OSError(errno.EINVAL, "it is a device, which may have no end; give the name of a file")
        key = (status.st_dev, status.st_ino)
        content = _seen.pop(key, None)
        if content is None:
            content = _drain(descriptor, path, most)
        if look:
            _seen[key] = content
        return io.BytesIO(content)
    finally:
        os.close(descriptor)


def read_input(path: Path, most: int = LARGEST, look: bool = False) -> bytes:
    """The bytes of the file or pipe of this name. Arguments and errors as in `open_input`."""
    with open_input(path, most, look) as file:
        size = os.fstat(file.fileno()).st_size if not isinstance(file, io.BytesIO) else 0
        if size > most:  # asked first, since a read of so many bytes allocates them all
            raise _too_large(most)
        content = file.read()
    if len(content) > most:
        raise _too_large(most)
    return content


def require_file(path: Path) -> None:
    """Raise OSError if there is something of this name that is no file, for libraries that open names themselves."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise OSError(errno.EINVAL, "it is a pipe or a device, and must be a file; copy what it brings into one")


@contextlib.contextmanager
def reading(path: Path, error: type[FcaffeError], noun: str = "file") -> Iterator[None]:
    """What goes wrong in the body, where the file is read, becomes an `error` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise error(f"{path} does not exist (looked for {os.path.abspath(path)}); correct the path") from None
    except IsADirectoryError:
        raise error(f"{path} is a folder; a {noun} is wanted") from None
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror}") from problem


class UnreadableError(FcaffeError):
    """What a library said of a file that is damaged, or of a name that the file cannot take."""


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """For one call of a library that reads a file: what it raises, of many kinds, becomes an UnreadableError."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as problem:
        raise UnreadableError(" ".join(str(problem).split()) or type(problem).__name__) from problem


@contextlib.contextmanager
def opened_by(library: Callable[[Path], Any], path: Path) -> Iterator[Any]:
    """What a library's function returns for the name of a file, closed behind the body. Raises UnreadableError."""
    try:
        require_file(path)
    except OSError as problem:
        raise UnreadableError(problem.strerror) from problem
    with asking():
        file = library(path)
    with file:
        yield file


def _drain(descriptor: int, path: Path, most: int) -> bytes:
    """Everything that comes from a pipe, which does not block, until all who write to it have closed it."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    pieces: list[bytes] = []
    size, told, since = 0, False, time.monotonic()
    while True:
        hung_up = any(event & select.POLLHUP for _, event in poll.poll(1000 * STEP))
        try:
            piece = os.read(descriptor, 1 << 20)
            opened = bool(piece)
        except BlockingIOError:  # somebody has opened it for writing, and has written nothing new
            piece, opened = b"", True
        if piece:
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise _too_large(most)
            since = time.monotonic()
            continue
        if not opened and (pieces or hung_up):
            return b"".join(pieces)
        waited = time.monotonic() - since
        if waited > (SILENT if opened else UNOPENED):
            what = f"nothing has come from it for {waited:.0f} s" if opened else "nobody writes to it"
            raise OSError(errno.ETIMEDOUT, f"it is a pipe, and {what}; give a file, or start first what writes to it")
        if waited > TOLD and not told:
            told = True
            log.warning(f"Waiting for what is to be written to the pipe {os.fspath(path)}")
        if not opened:
            time.sleep(STEP)


def _too_large(most: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {most} bytes, the most that such a file may have")
