"""Formulas as chains of oneDNN's elementwise operations, each of which passes over memory once.

A chain begins with an array. Each step applies a function or combines the value with another array:

    dy * (1 - y * y)    y, times y, times -1 plus 1, times dy                      one pass
    x * (x >= a) * ...  first the second factor, into a temporary array, then it    two passes

Functions for which the library is inexact, such as log1p, have no steps, so NumPy computes their formulas. A whole
formula may be one function of the library, or its gradient: `WHOLE` has these.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.engines.formulas import SIGMOID_UNIT, Tree, parse
from fcaffe.engines.onednn import dnnl

Step = tuple[int, str] | tuple[int, float, float]  # a binary operation with the array of a name, or a function


class Whole(NamedTuple):
    """A function of the library with its alpha. `inputs` are x; or of a gradient, what it is in terms of, and dy."""

    algorithm: int
    inputs: tuple[str, ...]
    alpha: float = 0


# By formulas, of which n is a number. The library's expm1 is exp(x) - 1, as in Caffe.
WHOLE = {
    "max(x, 0) + n * expm1(min(x, 0))": Whole(dnnl.ELU, ("x",)),
    "dy * ((x > 0) + (y + n) * (x <= 0))": Whole(dnnl.ELU_BY_DST, ("y", "dy")),
    "x * sigmoid(n * x)": Whole(dnnl.SWISH, ("x",)),
    "dy * (n * y + sigmoid(n * x) * (1 - n * y))": Whole(dnnl.SWISH, ("x", "dy")),
    "dy * (1 - y * y)": Whole(dnnl.TANH_BY_DST, ("y", "dy")),
    "dy * (y * (1 - y))": Whole(dnnl.LOGISTIC_BY_DST, ("y", "dy")),
    "dy * sign(x)": Whole(dnnl.ABS, ("x", "dy")),
}

_UNARY: dict[str, tuple[Step, ...]] = {
    "abs": ((dnnl.ABS, 0, 0),),
    "tanh": ((dnnl.TANH, 0, 0),),
    "sqrt": ((dnnl.SQRT, 0, 0),),
    "sigmoid": (
        (dnnl.LOGISTIC, 0, 0),
        (dnnl.LINEAR, 1 / SIGMOID_UNIT, 0),
        (dnnl.ROUND, 0, 0),
        (dnnl.LINEAR, SIGMOID_UNIT, 0),
    ),
}
_BINARY = {"+": dnnl.ADD, "-": dnnl.SUBTRACT, "*": dnnl.MULTIPLY, "/": dnnl.DIVIDE}
_COMPARED = {">": (1, 0), ">=": (1, 1), "<": (-1, 0), "<=": (-1, 1)}  # sign of the difference, and what equal ones give
_MOST_FACTORS = 4  # of a power by multiplications


class Pass(NamedTuple):
    """target = the array `start` after these steps. A target is "out" or a temporary array."""

    start: str
    steps: tuple[Step, ...]
    target: str


class _NoStepsError(Exception):
    """The library has no exact operation for a function."""


def whole(tree: Tree) -> Whole | None:
    """The function of the library that is this formula."""
    for text, function in WHOLE.items():
        for number in sorted({1.0, *_numbers(tree)}):
            if number >= 0 and parse(text, {"n": number}) == tree:
                return function._replace(alpha=number)
    return None


def passes_of(tree: Tree) -> list[Pass] | None:
    """The passes that compute a formula, the last one into "out"; None if one of its functions has no steps."""
    passes: list[Pass] = []
    try:
        start, steps = _chain(tree, passes)
    except _NoStepsError:
        return None
    return [*passes, Pass(start, steps, "out")]


def _chain(tree: Tree, passes: list[Pass]) -> tuple[str, tuple[Step, ...]]:
    """The array with which a chain begins, and its steps. Adds the passes that it needs before."""
    if isinstance(tree, str):
        return tree, ()
    if not isinstance(tree, tuple):
        raise _NoStepsError
    function, first, *rest = tree
    if function in _UNARY:
        start, steps = _chain(first, passes)
        return start, (*steps, *_UNARY[function])
    if function == "exp":  # which gives inf for NaN
        name = _array(first, passes)
        return name, ((dnnl.EXP, 0, 0), *_with_nan_of(name, dnnl.MAX))
    if function == "sign":
        return _chain(("-", (">", first, 0.0), ("<", first, 0.0)), passes)
    if function == "**":
        factors = rest[0]
        if factors == 0.5:
            return _chain(("sqrt", first), passes)
        if not factors.is_integer() or not 1 < factors <= _MOST_FACTORS:
            raise _NoStepsError
        name = _array(first, passes)
        return name, ((dnnl.MULTIPLY, name),) * (int(factors) - 1)
    if function in ("max", "min"):
        return _bounded(function, first, rest[0], passes)
    if function in _COMPARED:
        sign, equal = _COMPARED[function]
        start, steps = _chain(first if rest[0] == 0.0 else ("-", first, rest[0]), passes)
        return start, (*steps, (dnnl.LINEAR, sign * FLT_MAX, equal), (dnnl.CLIP, 0, 1))
    if function in _BINARY:
        return _combined(function, first, rest[0], passes)
    raise _NoStepsError


def _combined(function: str, left: Tree, right: Tree, passes: list[Pass]) -> tuple[str, tuple[Step, ...]]:
    """The chain of a sum, difference, product or quotient."""
    if isinstance(right, float):
        start, steps = _chain(left, passes)
        gain = {"*": right, "/": 1 / right if right else math.inf}.get(function, 1.0)
        return start, (*steps, (dnnl.LINEAR, gain, {"+": right, "-": -right}.get(function, 0.0)))
    if isinstance(left, float):
        if function == "/":
            raise _NoStepsError
        start, steps = _chain(right, passes)
        gain = {"*": left, "-": -1.0}.get(function, 1.0)
        return start, (*steps, (dnnl.LINEAR, gain, 0.0 if function == "*" else left))
    if function in "+*" and not isinstance(right, str) and (isinstance(left, str) or _size(right) > _size(left)):
        left, right = right, left  # the longer part begins the chain
    other = _array(right, passes)
    start, steps = _chain(left, passes)
    return start, (*steps, (_BINARY[function], other))


def _bounded(function: str, first: Tree, second: Tree, passes: list[Pass]) -> tuple[str, tuple[Step, ...]]:
    """The chain of max or min. The library's clip gives its lower bound for NaN, so NaN has to come back."""
    operation = dnnl.MAX if function == "max" else dnnl.MIN
    if isinstance(first, float) and function == "max":  # NaN becomes the bound, as in C++
        start, steps = _chain(second, passes)
        return start, (*steps, (dnnl.CLIP, first, math.inf))
    if isinstance(first, float):
        raise _NoStepsError
    name = _array(first, passes)
    if isinstance(second, float):
        bounds = (second, math.inf) if function == "max" else (-math.inf, second)
        return name, ((dnnl.CLIP, *bounds), *_with_nan_of(name, operation))
    return _array(second, passes), ((operation, name),)


def _with_nan_of(name: str, operation: int) -> tuple[Step, ...]:
    """A step that changes no number: a maximum with something smaller, or a minimum. It gives NaN where the array has
    NaN, since the library returns the second operand then."""
    return ((operation, name),)


def _array(tree: Tree, passes: list[Pass]) -> str:
    """The name of an array with this value: one of the formula's, or a temporary one that a pass writes."""
    if isinstance(tree, str):
        return tree
    start, steps = _chain(tree, passes)
    for earlier in passes:
        if earlier[:2] == (start, steps):
            return earlier.target
    name = f"#{len(passes)}"
    passes.append(Pass(start, steps, name))
    return name


def _numbers(tree: Tree) -> set[float]:
    """The constants in a formula."""
    if isinstance(tree, float):
        return {tree}
    return set().union(*map(_numbers, tree[1:])) if isinstance(tree, tuple) else set()


def _size(tree: Tree) -> int:
    return 1 + sum(map(_size, tree[1:])) if isinstance(tree, tuple) else 1
