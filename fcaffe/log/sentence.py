"""Sentence: a log line of Caffe's; and Caffe's formats of numbers, shapes and messages."""

from __future__ import annotations

import math
import re

from fcaffe.log.lines import write


class Sentence:
    """A line that Caffe prints. Calling it with the values for its braces, in their order, logs it.

    `source` is Caffe's source tag.
    """

    def __init__(self, text: str, source: str, level: str = "I") -> None:
        self._text, self._source, self._level = re.sub(r"\{\w+", "{", text), source, level

    def __call__(self, *values: object) -> None:
        write(self._level, self._text.format(*values), self._source)


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
