"""Text files line by line, with a limit on the length of lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from fcaffe.errors import DataError

LONGEST_LINE = 1 << 24  # bytes


def numbered_lines(file: IO[bytes], source: str) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a text file, numbered from 1. Raises DataError for a line that is too long."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DataError(f"{source}:{number}: this line has more than {LONGEST_LINE} bytes; give a text file")
        yield number, line
