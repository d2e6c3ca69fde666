"""The operators of arrays, which are the module's functions."""

from __future__ import annotations

import functools
from typing import Any

from tests.engines.cuda.stand_in_cupy import functions
from tests.engines.cuda.stand_in_cupy.arrays import Array

METHODS = (
    "all any argmax argmin max min sum prod mean std var cumsum dot clip round repeat take nonzero argsort sort "
    "swapaxes"
)


BINARY = (
    "add:add sub:subtract mul:multiply truediv:true_divide floordiv:floor_divide mod:remainder pow:power "
    "and:bitwise_and or:bitwise_or xor:bitwise_xor lshift:left_shift rshift:right_shift matmul:matmul"
)
COMPARED = "eq:equal ne:not_equal lt:less le:less_equal gt:greater ge:greater_equal"


def give_operators() -> None:
    """Make them, and NumPy's methods, those of Array."""
    binary, compared = (dict(pair.split(":") for pair in pairs.split()) for pairs in (BINARY, COMPARED))
    for name, function in [*binary.items(), *compared.items()]:
        ufunc = functions.members[function]
        setattr(Array, f"__{name}__", lambda self, other, ufunc=ufunc: ufunc(self, other))
        if name in binary:
            setattr(Array, f"__r{name}__", lambda self, other, ufunc=ufunc: ufunc(other, self))
    for name, function in binary.items():
        if name == "matmul":
            continue

        def in_place(self: Array, other: Any, ufunc: Any = functions.members[function]) -> Array:
            return ufunc(self, other, out=self)

        setattr(Array, f"__i{name}__", in_place)
    for name, function in {"neg": "negative", "abs": "absolute", "invert": "invert"}.items():
        setattr(Array, f"__{name}__", lambda self, ufunc=functions.members[function]: ufunc(self))
    for name in METHODS.split():
        setattr(Array, name, functools.partialmethod(_method, name))


def _method(self: Array, name: str, *arguments: Any, **options: Any) -> Any:
    return functions.members[name](self, *arguments, **options)
