"""Scores a model with the test nets of a solver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.engines import Engine
from fcaffe.errors import UsageError
from fcaffe.model_files import Model
from fcaffe.net import Context, Net
from fcaffe.net.memory_need import check_memory
from fcaffe.net.weights import copy_weights
from fcaffe.rng import CaffeRandom
from fcaffe.solvers.nets import test_net_params


def model_scores(
    param: Any, model: Model, engine: Engine, change: Callable[[Any], Any] = lambda net: net
) -> list[tuple[str, float]]:
    """Name and mean of each scalar output of all test nets, over test_iter batches each.

    Args:
        param: the SolverParameter.
        model: the weights.
        engine: runs the nets.
        change: converts the NetParameter of a test net.

    Raises:
        UsageError: the solver has no test nets.
        SnapshotError: the model does not fit a net.
    """
    found: list[tuple[str, float]] = []
    with log.quiet():
        sources = test_net_params(param)
        if not sources:
            raise UsageError("the solver has no test net: give it test_iter and test_interval, or leave --solver out")
        for (net_param, _), batches in zip(sources, param.test_iter, strict=True):
            context = Context(engine, CaffeRandom(None), noise="counter", inference=True, whole_passes=True)
            net = Net(change(net_param), context)
            try:
                check_memory(net)
                copy_weights(net, model, "the model")
                found += _means(net, batches)
            finally:
                net.close()
    return found


def _means(net: Net, batches: int) -> list[tuple[str, float]]:
    engine = net.context.engine
    outputs = [(name, blob) for name, blob, _ in net.outputs() if blob.count == 1]
    sums = np.zeros(len(outputs))
    with engine.fixed_weights():
        for _ in range(batches):
            net.forward()
            sums += [float(engine.to_numpy(blob.data).reshape(-1)[0]) for _, blob in outputs]
    return [(name, total / batches) for (name, _), total in zip(outputs, sums, strict=True)]
