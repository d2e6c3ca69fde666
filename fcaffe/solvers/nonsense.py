"""Warnings about settings of a solver or its net that make no sense, which Caffe accepts silently.

A check is a function that yields a line for each finding: what is wrong and what to do. `OF_PARAMETERS` has the checks
of the solver's parameters, `OF_NET` those of the training net. They change no number and stop no run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fcaffe.net import Net
from fcaffe.net.overwritten import overwritten_bottoms
from fcaffe.solvers import trust_ratio

HIGHEST_RATE = 10

# The fields that each learning-rate policy reads.
_FIELDS = {
    "step": ("gamma", "stepsize"),
    "exp": ("gamma",),
    "inv": ("gamma", "power"),
    "multistep": ("gamma", "stepvalue"),
    "poly": ("max_iter", "power"),
    "sigmoid": ("gamma", "stepsize"),
}


def rate(param: Any) -> Iterator[str]:
    if not param.HasField("base_lr"):
        yield "base_lr is missing and counts as 0, so no weight changes; give it, such as base_lr: 0.01"
    elif param.base_lr < 0:
        yield f"base_lr is {param.base_lr:g}: a negative rate makes the loss grow; give a positive one"
    elif not (param.base_lr <= HIGHEST_RATE or trust_ratio.is_wanted(param)):
        yield f"base_lr is {param.base_lr:g}, with which hardly any net trains; 0.01 is common"


def momentum(param: Any) -> Iterator[str]:
    for name in ("momentum", "momentum2") if param.type == "Adam" else ("momentum",):
        value = getattr(param, name)
        if not 0 <= value < 1:
            yield f"{name} is {value:g}, and makes sense from 0 to less than 1 only; 0.9 is common"


def weight_decay(param: Any) -> Iterator[str]:
    if not param.weight_decay >= 0:
        yield f"weight_decay is {param.weight_decay:g}, with which weights grow without end; give 0 or more"


def policy(param: Any) -> Iterator[str]:
    missing = [name for name in _FIELDS.get(param.lr_policy, ()) if not _is_given(param, name)]
    if missing:
        count, them = ("count", "them") if missing[1:] else ("counts", "it")
        yield f'lr_policy "{param.lr_policy}" lacks {" and ".join(missing)}, which {count} as 0; give {them}'


def step_values(param: Any) -> Iterator[str]:
    values = list(param.stepvalue)
    if param.lr_policy == "multistep" and values != sorted(set(values)):
        yield f"stepvalue has {', '.join(map(str, values))}, of which each must be larger than the one before"


def tests(param: Any) -> Iterator[str]:
    if param.test_interval > 0 and not param.test_iter:
        yield "test_interval is given without test_iter, so nothing is tested; give test_iter once for each test net"
    for count in param.test_iter:
        if count < 1:
            yield f"test_iter is {count}: a test of no batch has no result; give 1 or more"


def loss(net: Net) -> Iterator[str]:
    if not any(node.has_loss for node in net.nodes):
        yield (
            "the training net has no loss, so nothing is learned; add a layer such as SoftmaxWithLoss, or give a layer "
            "a loss_weight"
        )


def in_place(net: Net) -> Iterator[str]:
    for layer, index in overwritten_bottoms(net.nodes):
        yield (
            f'layer "{layer.name}" ({layer.type}) works in place on {layer.bottom_name(index)}; its gradient, which '
            "needs what was there before, is wrong, as in Caffe; give its top another name"
        )


OF_PARAMETERS: list[Callable[[Any], Iterator[str]]] = [rate, momentum, weight_decay, policy, step_values, tests]
OF_NET: list[Callable[[Net], Iterator[str]]] = [loss, in_place]


def of_parameters(param: Any) -> list[str]:
    """Return a line for each finding in a SolverParameter."""
    return [line for check in OF_PARAMETERS for line in check(param)]


def of_net(net: Net) -> list[str]:
    """Return a line for each finding in a training net."""
    return [line for check in OF_NET for line in check(net)]


def of_solving(param: Any) -> list[str]:
    """Return a line if max_iter is missing, which only a script that calls `step` can do without."""
    given = param.HasField("max_iter")
    return [] if given else ["max_iter is missing and counts as 0, so nothing is trained; give it, such as 10000"]


def _is_given(param: Any, name: str) -> bool:
    return bool(param.stepvalue) if name == "stepvalue" else param.HasField(name)
