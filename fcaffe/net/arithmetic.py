"""Arithmetic with infinities and NaN, which are ordinary values in a net, as in C."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])


def silent_arithmetic(function: Function) -> Function:
    """Decorator: NumPy does not warn about floating-point errors while the function runs."""

    @functools.wraps(function)
    def silent(*arguments: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):  # one of NumPy 1 that is entered twice would not restore the settings
            return function(*arguments, **named)

    return cast(Function, silent)


def sign(x: Any) -> Any:
    """-1, 0 or 1 as float32; 0 for NaN, as in Caffe."""
    return (x > 0).astype("float32") - (x < 0)
