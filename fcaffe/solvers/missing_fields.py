"""Warnings about fields of a solver that are missing and count as 0, which Caffe accepts silently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# The fields that each learning-rate policy reads.
_FIELDS = {
    "step": ("gamma", "stepsize"),
    "exp": ("gamma",),
    "inv": ("gamma", "power"),
    "multistep": ("gamma", "stepvalue"),
    "poly": ("max_iter", "power"),
    "sigmoid": ("gamma", "stepsize"),
}


def of_parameters(param: Any) -> Iterator[str]:
    """Yield a line for each finding in a SolverParameter: what is wrong and what to do."""
    if not param.HasField("base_lr"):
        yield "base_lr is missing and counts as 0, so no weight changes; give it, such as base_lr: 0.01"
    given = {field.name for field, _ in param.ListFields()}
    if missing := [name for name in _FIELDS.get(param.lr_policy, ()) if name not in given]:
        count, them = ("count", "them") if missing[1:] else ("counts", "it")
        yield f'lr_policy "{param.lr_policy}" lacks {" and ".join(missing)}, which {count} as 0; give {them}'
    if param.test_interval > 0 and not param.test_iter:
        yield "test_interval is given without test_iter, so nothing is tested; give test_iter once for each test net"


def of_solving(param: Any) -> Iterator[str]:
    """Yield a line if max_iter is missing, which only a script that calls `step` can do without."""
    if not param.HasField("max_iter"):
        yield "max_iter is missing and counts as 0, so nothing is trained; give it, such as 10000"
