"""Learning-rate policies and warm-up, with Caffe's float32 rounding.

`multistep` alone has state: `current_step`, how many of its step values have been passed. It moves on by at most one an
iteration, also when several are due, so it belongs to the snapshot (where `step`, too, notes its count).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import SolverError
from fcaffe.net.arithmetic import silent_arithmetic

f32 = np.float32
Policy = Callable[[Any, int, int], float]


def _pow(base: float, exponent: float) -> float:
    """C's pow, which gives infinity or NaN where Python's raises an error."""
    try:
        return math.pow(base, exponent)
    except (OverflowError, ValueError):
        return float(np.power(np.float64(base), np.float64(exponent)))


def _power(base: float, exponent: float) -> np.float32:
    """C's powf: computed wide, rounded once."""
    return f32(_pow(float(f32(base)), float(f32(exponent))))


def fixed(param: Any, iteration: int, current_step: int) -> float:
    return param.base_lr


def step(param: Any, iteration: int, current_step: int) -> float:
    """base_lr * gamma ^ floor(iteration / stepsize)"""
    if param.stepsize < 1:
        raise SolverError("lr_policy 'step' needs a positive stepsize")
    return param.base_lr * _pow(param.gamma, iteration // param.stepsize)


def exponential(param: Any, iteration: int, current_step: int) -> float:
    """base_lr * gamma ^ iteration"""
    return param.base_lr * _pow(param.gamma, iteration)


def inverse(param: Any, iteration: int, current_step: int) -> float:
    """base_lr * (1 + gamma * iteration) ^ -power"""
    base = f32(1) + f32(param.gamma) * f32(iteration)
    return f32(param.base_lr) * _power(base, -param.power)


def multistep(param: Any, iteration: int, current_step: int) -> float:
    """base_lr * gamma ^ current_step"""
    return param.base_lr * _pow(param.gamma, current_step)


def polynomial(param: Any, iteration: int, current_step: int) -> float:
    """base_lr * (1 - iteration / max_iter) ^ power"""
    base = f32(1) - f32(iteration) / f32(param.max_iter)
    factor = _power(base, param.power)
    if base < 0 and np.isnan(factor):
        raise SolverError(
            f"lr_policy 'poly' with power: {param.power:g} has no rate at iteration {iteration}, beyond max_iter: "
            f"{param.max_iter}; set max_iter to the last iteration"
        )
    return f32(param.base_lr) * factor


def cosine(param: Any, iteration: int, current_step: int) -> float:
    """base_lr * (1 + cos(pi * iteration / max_iter)) / 2, which BVLC Caffe does not have"""
    return param.base_lr * (1 + math.cos(math.pi * min(iteration / max(param.max_iter, 1), 1))) / 2


def sigmoid(param: Any, iteration: int, current_step: int) -> float:
    """base_lr / (1 + exp(-gamma * (iteration - stepsize)))"""
    exponent = f32(-param.gamma) * (f32(iteration) - f32(param.stepsize))
    return f32(param.base_lr) * (f32(1) / (f32(1) + f32(math.exp(min(float(exponent), 700.0)))))


def multifixed(param: Any, iteration: int, current_step: int) -> float:
    """The stagelr of the first stage whose stageiter is at least `iteration`, else the last one (YOLO's forks)."""
    if not param.stagelr or len(param.stagelr) != len(param.stageiter):
        raise SolverError("lr_policy 'multifixed' needs stagelr, and a stageiter for each")
    stages = zip(param.stagelr, param.stageiter, strict=True)
    return next((rate for rate, end in stages if iteration <= end), param.stagelr[-1])


POLICIES: dict[str, tuple[Policy, tuple[str, ...]]] = {  # each with the fields that it reads, besides base_lr
    "fixed": (fixed, ()),
    "step": (step, ("gamma", "stepsize")),
    "exp": (exponential, ("gamma",)),
    "inv": (inverse, ("gamma", "power")),
    "multistep": (multistep, ("gamma", "stepvalue")),
    "poly": (polynomial, ("max_iter", "power")),
    "cosine": (cosine, ("max_iter",)),
    "sigmoid": (sigmoid, ("gamma", "stepsize")),
    "multifixed": (multifixed, ()),
}


@silent_arithmetic
def learning_rate(param: Any, iteration: int, current_step: int = 0) -> float:
    """The rate of the update from `iteration` to `iteration` + 1, rounded to float32."""
    if param.lr_policy not in POLICIES:
        what = f"unknown lr_policy '{param.lr_policy}'" if param.lr_policy else "lr_policy is missing"
        raise SolverError(f"{what}; known ones: {', '.join(POLICIES)}")
    rate = POLICIES[param.lr_policy][0](param, iteration, current_step)
    return float(f32(warm_up(param, iteration) if iteration < warm_up_end(param) else rate))


def warm_up_end(param: Any) -> int:
    """The first iteration after the warm-up, in which the rate rises to base_lr."""
    if param.warmup_iter > 0 and param.rampup_interval > 0:
        raise SolverError("warmup_iter and rampup_interval are both given: they are two forms of warm-up, use one")
    return max(param.warmup_iter, param.rampup_interval, 0)


def warm_up(param: Any, iteration: int) -> float:
    """The rate before `warm_up_end`: along a line from warmup_start_lr, as in Intel's fork, or along a parabola from
    rampup_lr, as in NVIDIA's. The momentum gathered so far is left alone, as at any change of the rate."""
    base, end = f32(param.base_lr), f32(warm_up_end(param))
    if param.warmup_iter > 0:
        return (f32(iteration) * base + (end - f32(iteration)) * f32(param.warmup_start_lr)) / end
    start, part = f32(param.rampup_lr), f32(iteration) / end
    return start + (base - start) * part * part


SCALES = {"linear": 1.0, "sqrt": 0.5}  # the exponents of --scale-lr


def scale_rate(param: Any, scale: str, factor: float) -> None:
    """Scale base_lr for a batch `factor` times that of the solver (Goyal et al. 2017; sqrt: Krizhevsky 2014).

    A warm-up without a start rate begins at the unscaled base_lr, as in the former paper.
    """
    unscaled = param.base_lr
    param.base_lr = unscaled * factor ** SCALES[scale]
    param.stagelr[:] = [rate * factor ** SCALES[scale] for rate in param.stagelr]
    if param.warmup_iter > 0 and not param.HasField("warmup_start_lr"):
        param.warmup_start_lr = unscaled
    if param.rampup_interval > 0 and not param.HasField("rampup_lr"):
        param.rampup_lr = unscaled


def next_step(param: Any, iteration: int, current_step: int) -> int:
    """`current_step` at this iteration, from that of the iteration before. Logs a change of `multistep`.

    Other policies leave it alone, and so does a warm-up.
    """
    if iteration < warm_up_end(param):
        return current_step
    if param.lr_policy == "step":
        return iteration // max(param.stepsize, 1)
    due = current_step < len(param.stepvalue) and iteration >= param.stepvalue[current_step]
    if param.lr_policy == "multistep" and due:
        current_step += 1
        log.multistep(iteration, current_step)
    return current_step
