"""Sentence: log lines of Caffe's; and Caffe's formats of numbers, shapes and messages."""

from __future__ import annotations

import math
import re

from fcaffe.log.lines import write


class Sentence:
    """Lines that Caffe prints. Calling it with values for its fields, in the order of the text, logs them.

    Each line is followed by its source tag in Caffe, in which fields are allowed as well.
    """

    def __init__(self, *lines: str, level: str = "I") -> None:
        self._lines = list(zip(lines[::2], lines[1::2], strict=True))
        self._names = list(dict.fromkeys(re.findall(r"\{(\w+)", "".join(lines))))
        self._level = level

    def __call__(self, *values: object) -> None:
        fields = dict(zip(self._names, values, strict=True))
        for text, source in self._lines:
            write(self._level, text.format(**fields), source.format(**fields))


def number(value: float) -> str:
    """`value` as C++'s `ostream <<` prints a float: with six significant digits, `1e-05`."""
    return f"{value:.6g}"


def weighted(name: str, value: float, loss_weight: float) -> str:
    """A net's output and, if it is a loss, its weighted value."""
    text = f"{name} = {number(value)}"
    return text + f" (* {number(loss_weight)} = {number(loss_weight * value)} loss)" if loss_weight else text


def shape_string(shape: tuple[int, ...]) -> str:
    """The dimensions and, in parentheses, their product."""
    return "".join(f"{dim} " for dim in shape) + f"({math.prod(shape)})"


def message_string(text: str) -> str:
    """Converts a message as Python's protobuf prints it to C++'s form: `lr_mult: 1`, not `lr_mult: 1.0`."""
    return re.sub(r"^( *\w+: -?\d+)\.0$", r"\1", text, flags=re.MULTILINE)
