"""Lines and tables on standard output."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.shown import shown

BAR = 40  # characters
EIGHTHS = " ▏▎▍▌▋▊▉█"


def say(line: str) -> None:
    """Print one line, which may have names from files in it."""
    print(shown(line))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int) -> None:
    """Print a table. Columns from index `numbers_from` on are numbers."""
    rows = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    say(title)
    for row in (columns, *rows):
        cells = [
            cell.rjust(width) if index >= numbers_from else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print()


def bar(share: float) -> str:
    """A bar of this share of the full length; at least an eighth of a character if the share is not 0."""
    eighths = max(round(8 * BAR * share), 1 if share > 0 else 0)
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
