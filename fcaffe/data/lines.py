"""Text files line by line, with a limit on the length of lines."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from fcaffe.errors import DataError
from fcaffe.input_files import open_input

LONGEST_LINE = 1 << 24  # bytes


def numbered_lines(source: str, noun: str) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a text file that are not blank, numbered from 1; `noun` names the file in errors.

    Raises DataError if the file cannot be read, has no such line, or has one that is too long.
    """
    number, blank = 0, True
    try:
        with open_input(source) as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise DataError(
                        f"{source}:{number}: this line has more than {LONGEST_LINE} bytes; give a text file"
                    )
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if b"\0" in line:
                    raise DataError(f"{source}:{number}: this line has a NUL; give a text file")
                if line.strip():
                    blank = False
                    yield number, line
    except OSError as problem:
        raise DataError(f'cannot read the {noun} "{source}": {problem.strerror}') from problem
    if blank:
        raise DataError(f'the {noun} "{source}" is empty')
