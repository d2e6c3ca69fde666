"""The ziggurats behind Caffe's normal and exponential numbers, in the arithmetic of Boost's float32 distributions.

A ziggurat covers the area under a density with strips of equal area (Marsaglia and Tsang, 2000). One 32-bit draw picks
a strip (low bits) and a position in it (upper 24 bits). A position under the next, narrower strip lies under the curve
and is the result: this holds for nearly 99 of 100 draws, which `CaffeRandom.normal` computes by arrays. The other draws
need further ones, and are computed here: the wedge between a strip's rectangle and the curve, and the tail.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Draw = Callable[[], int]  # the generator's next 32-bit number

# The end of the lowest strip, at which the tail begins, so that the topmost strip ends at the top of the curve.
_NORMAL_TAIL = Decimal("3.442619855896652121424320491467339704338")
_EXPONENTIAL_TAIL = Decimal("7.697117470131049714044628048015215499114")

_TO_UNIT = np.float32(2.0**-32)
_POSITION = np.float32(2.0**-24)


class Table:
    """Corners of the strips, from the widest (0) to the top of the curve: x[i] is the width of strip i, y[i] its floor.

    Both have one entry more than there are strips. Strip 0 includes the tail, so its width is not that of the curve.
    Boost stores doubles and computes with differences rounded to float32, which are stored as well.
    """

    def __init__(self, x: list[Decimal], y: list[Decimal]):
        self.x = np.array([float(v) for v in x])
        self.y = np.array([float(v) for v in y])
        self.x32 = self.x.astype(np.float32)
        self.y32 = self.y.astype(np.float32)
        self.step = (self.x[:-1] - self.x[1:]).astype(np.float32)
        self.rise = (self.y[1:] - self.y[:-1]).astype(np.float32)


def _equal_areas(
    strips: int,
    tail: Decimal,
    overhang: Decimal,
    density: Callable[[Decimal], Decimal],
    inverse: Callable[[Decimal], Decimal],
) -> Table:
    """The table whose tail begins at `tail`; `overhang` is the area beyond it, as a width at the tail's height."""
    x, y = [tail + overhang, tail], [Decimal(0), density(tail)]
    area = x[0] * y[1]
    for i in range(1, strips - 1):
        y.append(y[i] + area / x[i])
        x.append(inverse(y[-1]))
    return Table([*x, Decimal(0)], [*y, Decimal(1)])


@cache
def normal_table() -> Table:
    """128 strips under exp(-x^2 / 2)."""
    with localcontext() as context:
        context.prec = 40  # the recurrence loses digits; 17 must be right in the end
        mills = _NORMAL_TAIL  # area of the tail over its height: the continued fraction 1/(r + 1/(r + 2/(r + ...)))
        for k in range(400, 0, -1):
            mills = _NORMAL_TAIL + k / mills
        return _equal_areas(128, _NORMAL_TAIL, 1 / mills, lambda x: (-x * x / 2).exp(), lambda y: (-2 * y.ln()).sqrt())


@cache
def exponential_table() -> Table:
    """256 strips under exp(-x)."""
    with localcontext() as context:
        context.prec = 40
        return _equal_areas(256, _EXPONENTIAL_TAIL, Decimal(1), lambda x: (-x).exp(), lambda y: -y.ln())


def _exp(x: Any) -> Any:
    """exp of float32, rounded once from the double: what the C library's expf gives."""
    return np.exp(np.asarray(x, np.float64)).astype(np.float32)


def unit_uniform(draw: Draw) -> np.float32:
    """A float32 in [0, 1). The highest 128 draws round to 1 and are repeated."""
    while (unit := np.float32(draw()) * _TO_UNIT) >= 1:
        pass
    return unit


def wedge_accepts(strip: Any, x: Any, unit: Any) -> npt.NDArray[np.bool_]:
    """Whether the point at x, `unit` of the strip's height above its floor, lies under the normal curve.

    Arrays or scalars: strip from 1 on, x >= 0 and unit float32. The chord between the strip's corners and the tangent
    at its outer one settle most cases, in either order of the two: the curve is convex beyond x = 1, concave inside.
    """
    table = normal_table()
    floor, width = table.y32[strip], table.x32[strip]
    y = floor + unit * table.rise[strip]
    above_chord = table.step[strip] * unit - (width - x)
    above_tangent = y - (floor + (width - x) * floor * width)
    convex = table.x[strip] >= 1
    above_upper = np.where(convex, above_chord, above_tangent)
    above_lower = np.where(convex, above_tangent, above_chord)
    accepted: npt.NDArray[np.bool_] = (above_upper < 0) & ((above_lower < 0) | (y < _exp(-(x * x / 2))))
    return accepted


def normal_try(first: int, draw: Draw) -> np.float32 | None:
    """One try at a normal number, which begins with the draw `first`. Returns None if it is rejected."""
    table = normal_table()
    strip = first >> 1 & 127
    sign = np.float32(1 if first & 1 else -1)
    x: np.float32 = np.float32(first >> 8) * _POSITION * table.x32[strip]
    if float(x) < table.x[strip + 1]:
        return x * sign
    if strip == 0:
        return _normal_tail(draw) * sign
    return x * sign if wedge_accepts(strip, x, unit_uniform(draw)) else None


def _normal_tail(draw: Draw) -> np.float32:
    """A normal number beyond the lowest strip, by rejection of exponential ones (Marsaglia, 1964)."""
    begin: np.float32 = normal_table().x32[1]
    while True:
        x = exponential(draw) / begin
        y = exponential(draw)
        if y + y > x * x:
            return x + begin


def exponential(draw: Draw) -> np.float32:
    """An exponential number with mean 1."""
    table = exponential_table()
    shift = np.float32(0)
    while True:
        first = draw()
        strip = first & 255
        x: np.float32 = np.float32(first >> 8) * _POSITION * table.x32[strip]
        if float(x) < table.x[strip + 1]:
            return shift + x
        if strip == 0:  # the tail has the shape of the whole curve
            shift = np.float32(float(shift) + table.x[1])
            continue
        unit = unit_uniform(draw)
        y = table.y32[strip] + unit * table.rise[strip]
        above_chord = table.step[strip] * unit - (table.x32[strip] - x)
        top = table.y32[strip + 1]
        above_tangent = y - (top + (table.x32[strip + 1] - x) * top)
        if above_chord < 0 and (above_tangent < 0 or y < _exp(-x)):
            return shift + x
