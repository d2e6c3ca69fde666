"""Formulas: functions of single values, stated once as text and evaluated by every engine.

    Formula("x / (1 + abs(x))")                 of the array x
    Formula("dy * (y + alpha)", alpha=0.3)      numbers become constants

A formula has Python's arithmetic, comparisons, which give 1 or 0, and the functions of `FUNCTIONS`. max and min are
those of C++: max(a, b) is a unless a < b, so NaN in a stays, and NaN in b is passed over.
"""

from __future__ import annotations

import ast
import functools
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy

Tree = float | str | tuple[Any, ...]  # a constant, the name of an array, or a function's name and its arguments

SIGMOID_UNIT = 2.0**-54  # half the distance of float64's numbers below 1, which Caffe's tanh rounds to
MOST_FACTORS = 8  # of a power that is computed by multiplications


class Function(NamedTuple):
    """A function for arrays of an array module, in C, and its derivatives by its arguments a and b; f is its value."""

    of_arrays: Callable[..., Any]
    c: str
    derivatives: tuple[str, ...]


def _sigmoid(xp: Any, x: Any) -> Any:
    """0.5 * tanh(0.5 * x) + 0.5, as Caffe computes it in float64: a multiple of SIGMOID_UNIT."""
    small = 1 / (1 + xp.exp(abs(x)))  # the sigmoid of -|x|; that of |x| is 1 less this
    values = abs((x >= 0) - small)
    return xp.rint(values * xp.float32(1 / SIGMOID_UNIT)) * xp.float32(SIGMOID_UNIT)


def _logistic(xp: Any, x: Any) -> Any:
    """The sigmoid without that rounding, so that it has tiny values."""
    small = xp.exp(-abs(x))
    return xp.maximum(small, x >= 0) / (1 + small)


def _power(xp: Any, x: Any, exponent: Any) -> Any:
    """x to a constant exponent, without the slow general function where another one is as exact."""
    if exponent == 0.5:
        return xp.sqrt(x)
    if not float(exponent).is_integer():
        return xp.exp(exponent * xp.log(x))
    factors = abs(int(exponent))
    if not 0 < factors <= MOST_FACTORS:
        return xp.power(x, exponent)
    product = functools.reduce(xp.multiply, [x] * factors)
    return 1 / product if exponent < 0 else product


def _max(xp: Any, a: Any, b: Any) -> Any:
    if not getattr(b, "ndim", 0):
        return xp.maximum(a, b)
    return xp.where(a < b, b, a) if getattr(a, "ndim", 0) else xp.fmax(b, a)


def _min(xp: Any, a: Any, b: Any) -> Any:
    if not getattr(b, "ndim", 0):
        return xp.minimum(a, b)
    return xp.where(b < a, b, a) if getattr(a, "ndim", 0) else xp.fmin(b, a)


def _select(xp: Any, a: Any, b: Any) -> Any:
    """By a mask of bits, since `where` takes a branch for each value."""
    kind = f"i{b.dtype.itemsize}"
    return (b.view(kind) & -(a != 0).astype(kind)).view(b.dtype)


def _compared(name: str, sign: str) -> Function:
    def compare(xp: Any, a: Any, b: Any) -> Any:
        return getattr(xp, name)(a, b).astype(xp.float32)

    return Function(compare, f"({{a}} {sign} {{b}} ? 1.f : 0.f)", ("0", "0"))


FUNCTIONS: dict[str, Function] = {
    "+": Function(lambda xp, a, b: a + b, "({a} + {b})", ("1", "1")),
    "-": Function(lambda xp, a, b: a - b, "({a} - {b})", ("1", "-1")),
    "*": Function(lambda xp, a, b: a * b, "({a} * {b})", ("b", "a")),
    "/": Function(lambda xp, a, b: a / b, "({a} / {b})", ("1 / b", "-f / b")),
    "**": Function(_power, "power({a}, {b})", ("b * a ** (b - 1)",)),  # to a constant
    ">": _compared("greater", ">"),
    ">=": _compared("greater_equal", ">="),
    "<": _compared("less", "<"),
    "<=": _compared("less_equal", "<="),
    "max": Function(_max, "({a} < {b} ? {b} : {a})", ("a >= b", "a < b")),
    "min": Function(_min, "({b} < {a} ? {b} : {a})", ("a <= b", "b < a")),
    "select": Function(_select, "({a} ? {b} : 0.f)", ("0", "select(a, 1)")),  # b, or 0 where a is 0
    "abs": Function(lambda xp, a: abs(a), "fabsf({a})", ("(a > 0) - (a < 0)",)),
    "sign": Function(lambda xp, a: xp.greater(a, 0).astype(xp.float32) - xp.less(a, 0), "sign({a})", ("0",)),
    "exp": Function(lambda xp, a: xp.exp(a), "expf({a})", ("f",)),
    "log": Function(lambda xp, a: xp.log(a), "logf({a})", ("1 / a",)),
    "log1p": Function(lambda xp, a: xp.log1p(a), "log1pf({a})", ("1 / (1 + a)",)),
    "expm1": Function(lambda xp, a: xp.expm1(a), "expm1f({a})", ("f + 1",)),
    "sqrt": Function(lambda xp, a: xp.sqrt(a), "sqrtf({a})", ("0.5 / f",)),
    "tanh": Function(lambda xp, a: xp.tanh(a), "tanhf({a})", ("1 - f * f",)),
    "logistic": Function(_logistic, "logistic({a})", ("f * (1 - f)",)),
    "sigmoid": Function(_sigmoid, "sigmoid({a})", ("f * (1 - f)",)),
}

PREAMBLE = f"""
__device__ float power(float x, float e) {{ return x < 0 && e != rintf(e) ? sqrtf(x) : powf(x, e); }}  // of -inf: NaN
__device__ float sign(float x) {{ return (x > 0) - (x < 0); }}
__device__ float logistic(float x) {{ return (x >= 0 ? 1.f : expf(x)) / (1 + expf(-fabsf(x))); }}
__device__ float sigmoid(float x) {{
  float small = 1 / (1 + expf(fabsf(x)));
  return rintf((x >= 0 ? 1 - small : small) * {1 / SIGMOID_UNIT!r}f) * {SIGMOID_UNIT!r}f;
}}
"""

_OPERATORS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.LtE: "<=",
}


class Formula:
    """A formula of named arrays; keyword arguments are its numbers. `names` are those of its arrays."""

    def __init__(self, text: str | Tree, **numbers: float) -> None:
        self.tree: Tree = parse(text, numbers) if isinstance(text, str) else text
        self.names = frozenset(_names(self.tree))

    def derivative(self, name: str = "x") -> Formula:
        """The derivative by one of its arrays, in terms of its arrays."""
        return Formula(_derivative(self.tree, name))

    def gradient(self) -> Formula:
        """The gradient of the array x for the gradient dy of this formula's values."""
        return Formula(_call("*", "dy", _derivative(self.tree, "x")))

    def of_arrays(self, arrays: Mapping[str, Any], xp: Any) -> Any:
        """Its values for arrays of one shape, or shapes that broadcast, of the array module xp."""
        return _of_arrays(self.tree, arrays, xp)

    @functools.cached_property
    def c(self) -> str:
        """Its text in C, for float variables of the names of the arrays. It needs `PREAMBLE`."""
        return _c(self.tree)


_parsing = threading.Lock()  # Python 3.11 counts the depth of all threads' trees together, and raises SystemError


def parse(text: str, numbers: Mapping[str, Tree]) -> Tree:
    """The tree of a formula with these numbers, or trees, in place of their names."""
    with _parsing:
        statement = ast.parse(text, mode="eval")
    return _parse(statement.body, numbers)


def _parse(node: Any, numbers: Mapping[str, Tree]) -> Tree:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name):
        found = numbers.get(node.id, node.id)
        return found if isinstance(found, str | tuple) else float(found)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _call("*", -1.0, _parse(node.operand, numbers))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        return _call(node.func.id, *(_parse(argument, numbers) for argument in node.args))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _call(_OPERATORS[type(node.ops[0])], _parse(node.left, numbers), _parse(node.comparators[0], numbers))
    if isinstance(node, ast.BinOp):
        return _call(_OPERATORS[type(node.op)], _parse(node.left, numbers), _parse(node.right, numbers))
    raise ValueError(f"a formula has no {ast.unparse(node)}")


def _call(name: str, *arguments: Tree) -> Tree:
    """The function of these arguments: a constant if they are, and without factors of 1 and 0 and exponents of 1."""
    numbers = [numpy.float64(argument) for argument in arguments if isinstance(argument, float)]
    if len(numbers) == len(arguments):
        with numpy.errstate(all="ignore"):
            return float(FUNCTIONS[name].of_arrays(numpy, *numbers))
    if name == "*" and 0.0 in arguments:
        return 0.0
    if name in ("*", "/", "**") and arguments[1] == 1.0:
        return arguments[0]
    if name == "*" and arguments[0] == 1.0:
        return arguments[1]
    if name in ("+", "-") and arguments[1] == 0.0:
        return arguments[0]
    if name == "+" and arguments[0] == 0.0:
        return arguments[1]
    return (name, *arguments)


def _names(tree: Tree) -> set[str]:
    if isinstance(tree, str):
        return {tree}
    return set().union(*map(_names, tree[1:])) if isinstance(tree, tuple) else set()


def _derivative(tree: Tree, name: str) -> Tree:
    if not isinstance(tree, tuple):
        return float(tree == name)
    function, *arguments = tree
    total: Tree = 0.0
    known = {"f": tree, **dict(zip("ab", arguments, strict=False))}
    for argument, text in zip(arguments, FUNCTIONS[function].derivatives, strict=False):
        inner = _derivative(argument, name)
        if inner != 0.0:
            total = _call("+", total, _call("*", parse(text, known), inner))
    return total


def _of_arrays(tree: Tree, arrays: Mapping[str, Any], xp: Any) -> Any:
    if isinstance(tree, str):
        return arrays[tree]
    if isinstance(tree, float):
        return xp.float32(tree) if math.isfinite(tree) else tree
    function, *arguments = tree
    return FUNCTIONS[function].of_arrays(xp, *(_of_arrays(argument, arrays, xp) for argument in arguments))


def _c(tree: Tree) -> str:
    if isinstance(tree, str):
        return tree
    if isinstance(tree, float):
        number = float(numpy.float32(tree))
        return f"({number!r}f)" if math.isfinite(number) else "-INFINITY" if number < 0 else "INFINITY"
    function, *arguments = tree
    return FUNCTIONS[function].c.format(**dict(zip("ab", map(_c, arguments), strict=False)))
