"""Many small cases as one test: a test of its own costs more than most of them, and an error names its case."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def case(*what: object) -> Iterator[None]:
    """Within, an error's message begins with what the case is."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{', '.join(map(str, what))}: {error}") from error


def each_of(cases: Iterable[tuple[Any, ...]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a check a test for each group of cases, which are those with the same first value.

    The check takes the values of one case by position, and fixtures by name behind them.
    """
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for values in cases:
        groups.setdefault(values[0], []).append(values)

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        def test(group: str, **fixtures: Any) -> None:
            for values in groups[group]:
                with case(*values):
                    check(*values, **fixtures)

        parameters = [*inspect.signature(check).parameters.values()]
        fixtures = parameters[len(next(iter(groups.values()))[0]) :]
        group = inspect.Parameter("group", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([group, *fixtures])  # type: ignore[attr-defined]
        test.__doc__ = check.__doc__
        return pytest.mark.parametrize("group", groups)(test)

    return decorate
