"""Opens the input files that a user names, such that reading them ends.

A device such as /dev/zero has no end and is refused. A pipe, such as /dev/stdin or `--solver <(sed ...)`, is read
whole, with a time-out.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import select
import stat
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from fcaffe.errors import FcaffeError

LARGEST = 2**31 - 1  # bytes read from a pipe
SILENT = 60.0  # seconds in which a writer must open a pipe, or write again

# zlib compresses at most about a thousandfold; a file that claims more is damaged, and nothing is allocated for it.
MOST_PACKED = 2000

GZIP = b"\x1f\x8b"  # the beginning of a gzipped file

Path = str | os.PathLike[str]

_peeked: dict[tuple[int, int], bytes] = {}  # the content of pipes opened with `peek`, by device and inode


def open_input(path: Path, most: int = LARGEST, look: bool = False) -> BinaryIO:
    """Open a file for reading, or return the whole content of a pipe.

    With `look` the content of a pipe stays for the next call. Raises OSError, whose text says what is wrong, for a
    missing file, a device, and a pipe with no bytes or more than `most`.
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
        content = _peeked.pop(key, None)
        if content is None:
            content = _drain(descriptor, most)
        if look:
            _peeked[key] = content
        return io.BytesIO(content)
    finally:
        os.close(descriptor)


def read_input(path: Path, most: int = LARGEST, look: bool = False) -> bytes:
    """Return the bytes of a file or pipe. Arguments and errors as in `open_input`."""
    with open_input(path, most, look) as file:
        size = os.fstat(file.fileno()).st_size if not isinstance(file, io.BytesIO) else 0
        if size > most:  # a read of so many bytes would allocate them all
            raise _too_large(most)
        content = file.read()
    if len(content) > most:
        raise _too_large(most)
    return content


@contextlib.contextmanager
def open_packed(path: Path) -> Iterator[Any]:
    """Yield a file or pipe, opened by `open_input`, whose content may be gzipped. Read it by `read_promised`."""
    with open_input(path) as file:
        is_packed = file.read(2) == GZIP
        file.seek(0)
        yield gzip.GzipFile(fileobj=file) if is_packed else file


def read_promised(file: Any, size: int) -> bytes | None:
    """Read the rest of a file that promises `size` bytes in its header; None if it has fewer or more.

    Reads one byte beyond them at most, whatever a packed file holds.
    """
    pieces, missing = [], size + 1
    while missing and (piece := file.read(min(missing, 1 << 20))):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces) if missing == 1 else None


def require_inputs(*paths: str) -> None:
    """Raise FcaffeError if a file is missing, before the work that comes ahead of its reading; "" is no file."""
    for path in filter(None, paths):
        with reading(path, FcaffeError):
            os.stat(path)


def require_file(path: Path) -> None:
    """Raise OSError if the path names a pipe or a device, for libraries that open paths themselves."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise OSError(errno.EINVAL, "it is a pipe or a device, and must be a file; copy its content into one")


@contextlib.contextmanager
def reading(path: Path, error: type[FcaffeError], noun: str = "file") -> Iterator[None]:
    """Turn an OSError of the body, which reads the file, into an `error` that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise error(f"{path} does not exist (looked for {os.path.abspath(path)}); correct the path") from None
    except IsADirectoryError:
        raise error(f"{path} is a folder; a {noun} is wanted") from None
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror}") from problem


class UnreadableError(FcaffeError):
    """A library's error about a damaged file, or about a name that the file format cannot hold."""


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Turn any exception of the body, one call of a library that reads a file, into an UnreadableError."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as problem:
        raise UnreadableError(" ".join(str(problem).split()) or type(problem).__name__) from problem


@contextlib.contextmanager
def opened_by(library: Callable[[Path], Any], path: Path) -> Iterator[Any]:
    """Yield what a library's function returns for a path, and close it after the body. Raises UnreadableError."""
    try:
        require_file(path)
    except OSError as problem:
        raise UnreadableError(problem.strerror) from problem
    with asking():
        file = library(path)
    with file:
        yield file


def _drain(descriptor: int, most: int) -> bytes:
    """Read a non-blocking pipe until all writers have closed it."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)  # and POLLHUP, once a writer has had it open
    content = bytearray()
    while len(content) <= most:
        if not poll.poll(1000 * SILENT):
            raise OSError(errno.ETIMEDOUT, "it is a pipe that nobody writes to; give a file, or start its writer first")
        piece = os.read(descriptor, 1 << 20)
        if not piece:
            return bytes(content)
        content += piece
    raise _too_large(most)


def _too_large(most: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {most} bytes, the most that such a file may have")
