"""How Caffe prints numbers, shapes and messages in its sentences."""

from __future__ import annotations

import math
import re


def number(value: float) -> str:
    """`value` as C++'s `ostream <<` prints a float: with six significant digits, `1e-05`."""
    return f"{value:.6g}"


def weighted(name: str, value: float, loss_weight: float) -> str:
    """A net's output and, if it is a loss, what it contributes to the sum of all losses."""
    text = f"{name} = {number(value)}"
    return text + f" (* {number(loss_weight)} = {number(loss_weight * value)} loss)" if loss_weight else text


def shape_string(shape: tuple[int, ...]) -> str:
    """The dimensions and, in parentheses, their product."""
    return "".join(f"{dim} " for dim in shape) + f"({math.prod(shape)})"


def message_string(text: str) -> str:
    """A message as Python's protobuf prints it, with whole floats as C++ prints them: `lr_mult: 1`, not `1.0`."""
    return re.sub(r"^( *\w+: -?\d+)\.0$", r"\1", text, flags=re.MULTILINE)
