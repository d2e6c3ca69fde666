"""Prototxts as a person writes them, with comments and short messages on one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import text_format

LONGEST_LINE = 110  # characters of a message on one line


def net_text(head: Iterable[str], net: Any, comments: Mapping[str, str]) -> str:
    """The text of a net below the comments `head`. `comments` has those of layers, by name."""
    lines = [*(f"# {line}" for line in head), f'name: "{net.name}"']
    for layer in net.layer:
        comment = [f"  # {comments[layer.name]}"] if layer.name in comments else []
        lines += ["layer {", *comment, *_fields(layer), "}"]
    return "\n".join(lines) + "\n"


def _fields(layer: Any) -> list[str]:
    """The lines of a layer's fields; those of a message that fits on a line are joined."""
    lines: list[str] = []
    begins: list[int] = []  # of the messages that are still open
    for line in text_format.MessageToString(layer, as_utf8=True, indent=2).splitlines():
        lines.append(line)
        if line.endswith("{"):
            begins.append(len(lines) - 1)
        elif line.strip() == "}":
            begin = begins.pop()
            joined = " ".join([lines[begin], *map(str.strip, lines[begin + 1 :])])
            if len(joined) <= LONGEST_LINE:
                lines[begin:] = [joined]
    return lines
