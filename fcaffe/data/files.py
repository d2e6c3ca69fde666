"""Files that a prototxt names, opened with care: what never ends, or is much too large, is refused at once."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import IO

from fcaffe.errors import DataError

LONGEST_LINE = 1 << 24  # bytes; what has a longer one is no text


def check_regular(path: str) -> None:
    """An OSError if this is a pipe, a socket or a device, of which nobody knows whether it ends. That a file is missing
    is found out by whoever opens it."""
    if os.path.exists(path):
        _check_mode(os.stat(path).st_mode, path)


def open_regular(path: str) -> IO[bytes]:
    """Open a file for reading. An OSError as of `open`, or if it is not a file but a pipe, a socket or a device."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # does not wait for a writer
    try:
        _check_mode(os.fstat(file.fileno()).st_mode, path)
    except OSError:
        file.close()
        raise
    return file


def read_whole(path: str, most: int) -> bytes:
    """The content of a file of at most so many bytes; an OSError if it has more."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than {most}", path)
        return file.read()


def numbered_lines(file: IO[bytes], source: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a text file, numbered from 1."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DataError(f"{source}:{number}: this line has more than {LONGEST_LINE} bytes; give a text file")
        yield number, line


def _check_mode(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device; give a file", path)
