"""Functions that are called at the steps of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fcaffe.solvers import Observer, Solver


def watch(solver: Solver, **functions: Callable[..., Any]) -> None:
    """watch(solver, gradients_ready=look): by the names of the methods of Observer."""
    observer = Observer()
    for name, function in functions.items():
        assert hasattr(Observer, name)
        setattr(observer, name, function)
    solver.observers.append(observer)
