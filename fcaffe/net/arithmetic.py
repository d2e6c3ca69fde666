"""Arithmetic of a net that blows up: infinities and NaN are ordinary values, as in C."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])


def silent_arithmetic(function: Function) -> Function:
    """Decorator: while the function runs, a net that blows up does so in its log, not in NumPy's warnings.

    What the caller has set counts again afterwards: each call has an errstate of its own, since one of NumPy 1 that is
    entered twice, as by a net that a Python layer runs, forgets what was set before.
    """

    @functools.wraps(function)
    def silent(*arguments: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments, **named)

    return cast(Function, silent)


def is_finite(values: Any) -> bool:
    """Whether all values of an array are finite; a sum that overflows is looked into."""
    return bool(abs(values).sum() < float("inf")) or bool((abs(values) < float("inf")).all())
