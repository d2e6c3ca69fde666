"""Layer-wise rates from the norms of weights and gradients (You, Gitman and Ginsburg 2017), for large batches.

Each parameter's rate is multiplied by a ratio of its own, on top of its lr_mult:

    local_lr_auto (LARS)  local_gw_ratio * |w| / (|g| + weight_decay * |w|)
    larc                  (1 - momentum) * larc_eta * |w| / |g|; larc_policy "clip": the ratio is the rate, if lower

Names and formulas are those of Intel's and NVIDIA's forks, where the ratio replaces an lr_mult above 0; g is
the gradient before the decay is added. A parameter whose weights or gradients are all zero keeps its rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fcaffe.engines.channels import ForEach, one_by_one
from fcaffe.errors import SolverError
from fcaffe.net.blob import Array

BLOCK = 1 << 17  # values that are handled at a time: they stay in a core's cache from one operation to the next

LARC_POLICIES = ("scale", "clip")
SOLVER_TYPES = ("SGD", "Nesterov")  # the others measure gradients in ways of their own


def is_wanted(param: Any) -> bool:
    """Whether the solver's parameters ask for rates of this kind."""
    return bool(param.local_lr_auto or param.larc)


def check(param: Any, applies_momentum: bool) -> None:
    """Raises SolverError if the parameters ask for impossible rates. `applies_momentum`: as in GradientExchange."""
    if not is_wanted(param):
        return
    name = "local_lr_auto" if param.local_lr_auto else "larc"
    if param.local_lr_auto and param.larc:
        raise SolverError("local_lr_auto and larc are both given: they are two forms of layer-wise rates, use one")
    if param.larc and param.larc_policy not in LARC_POLICIES:
        raise SolverError(f"unknown larc_policy '{param.larc_policy}'; known ones: {', '.join(LARC_POLICIES)}")
    if param.type not in SOLVER_TYPES:
        raise SolverError(f"{name} goes with the solver types {', '.join(SOLVER_TYPES)}, not with {param.type}")
    if applies_momentum:
        raise SolverError(
            f"{name} needs the gradients themselves: it does not go with a compression that applies the momentum of "
            "SGD (topk)"
        )


def local_rate(
    param: Any, xp: Any, w: Array, g: Array, rate: float, over_workers: Callable[[float], float] = float
) -> float:
    """The rate, before lr_mult, for a parameter of weights w and gradients g, both flat. `over_workers` adds up the
    squares of all parts of a split parameter."""
    if not is_wanted(param):
        return rate
    weights, gradients = (np.float32(over_workers(squares(values, xp)) ** 0.5) for values in (w, g))
    if not (weights > 0 and gradients > 0):
        return rate
    f32 = np.float32
    if param.local_lr_auto:
        ratio = f32(param.local_gw_ratio) * weights / (gradients + f32(param.weight_decay) * weights)
    else:
        ratio = (f32(1) - f32(param.momentum)) * f32(param.larc_eta) * weights / gradients
        if param.larc_policy == "clip":
            return min(rate, float(ratio))
    return float(f32(rate) * ratio)


def squares(values: Array, xp: Any, for_each: ForEach = one_by_one) -> float:
    """The sum of the squares of a flat array, in one order, whatever number of threads there is and whatever the
    machine's BLAS: workers must come to the same bits, or their weights would part. `for_each` is Engine.for_each."""
    blocks = [values[block] for block in blocks_of(slice(0, len(values)))]
    sums: list[Any] = [0.0] * len(blocks)

    def add_up(number: int, block: Array) -> None:
        sums[number] = xp.sum(xp.square(block, dtype=xp.float64))

    for_each(add_up, list(enumerate(blocks)))
    return float(sum(sums))  # of a device only the whole is waited for


def blocks_of(part: slice) -> list[slice]:
    """A slice cut into blocks of BLOCK values."""
    return [slice(start, min(start + BLOCK, part.stop)) for start in range(part.start, part.stop, BLOCK)]
