"""Text files line by line, with care: what has endless lines is no text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from fcaffe.errors import DataError

LONGEST_LINE = 1 << 24  # bytes; what has a longer one is no text


def numbered_lines(file: IO[bytes], source: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a text file, numbered from 1."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DataError(f"{source}:{number}: this line has more than {LONGEST_LINE} bytes; give a text file")
        yield number, line
