"""Limits: what the libraries of a fast engine cannot compute. The plain operator of the same name does it instead.

An engine has a table of `Limit`s by operation. It checks the limit before it makes an operation, or raises `UnfitError`
where plain array code is faster:

    @or_plain
    def average_pool_forward(self, x, y, windows):
        LIMITS["pooling"].check([x, y], windows)
        ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from fcaffe.engines.memory import Array

Operator = TypeVar("Operator", bound=Callable[..., Any])


class UnfitError(Exception):
    """An operation that is left to the plain operator. No output has been written yet."""


def require(condition: object) -> None:
    """Raise UnfitError unless the condition is true."""
    if not condition:
        raise UnfitError


@dataclass(frozen=True)
class Limit:
    """What the arrays of an operation must be: all have values; the first one has `least` to `most` axes; and `also`
    returns true for the arrays and the settings of the operation."""

    least: int
    most: int
    also: Callable[..., object] = lambda arrays, *settings: True

    def check(self, arrays: Sequence[Array], *settings: Any) -> None:
        """Raise UnfitError unless the arrays fit."""
        has_values = all(array.size for array in arrays)
        require(has_values and self.least <= arrays[0].ndim <= self.most and self.also(arrays, *settings))


def or_plain(operator: Operator) -> Operator:
    """Decorator of an engine's operator: if it raises UnfitError, the next class that has the operator computes it."""

    @functools.wraps(operator)
    def fast_or_plain(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return operator(self, *arguments, **named)
        except UnfitError:
            return behind(type(self).__mro__)(self, *arguments, **named)

    @functools.cache
    def behind(classes: tuple[type, ...]) -> Callable[..., Any]:
        """The next one of this name behind the decorated one."""
        operators = [vars(one)[operator.__name__] for one in classes if operator.__name__ in vars(one)]
        following: Callable[..., Any] = operators[operators.index(fast_or_plain) + 1]
        return following

    return cast(Operator, fast_or_plain)
