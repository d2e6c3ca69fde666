"""Scoring: the outputs of a net, or of all test nets of a solver, over some batches, and their means."""

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
from fcaffe.solvers.evaluation import AP_VERSIONS, Detections, collectors
from fcaffe.solvers.nets import test_net_params


def score(
    net: Net, iterations: int, ap_version: str = AP_VERSIONS[0], per_class: bool = False
) -> list[tuple[str, float]]:
    """Run this many batches forward; log every output of each batch, then the mean loss and the mean outputs.

    Of DetectionEvaluate layers only the mean average precision is logged, of this version, and with `per_class` that of
    each class. Returns name and mean of each output that is one number.
    """
    log.running_for(iterations)
    engine = net.context.engine
    loss = np.float32(0)
    collected = collectors(net, ap_version, per_class)
    with engine.fixed_weights():
        for batch in range(iterations):
            loss += np.float32(net.forward())
            for collector, (name, blob, _) in zip(collected, net.outputs(), strict=True):
                values = engine.to_numpy(blob.data).reshape(-1)
                collector.add(values)
                for value in () if isinstance(collector, Detections) else values:
                    log.batch_output(batch, name, float(value))
    log.mean_loss(float(loss) / iterations)
    found = []
    for collector, (name, _, weight) in zip(collected, net.outputs(), strict=True):
        results = [float(value) for value in collector.result()]
        for value in results:
            log.mean_output(name, value, weight)
        if len(results) == 1:
            found.append((name, results[0]))
    return found


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
                found += score(net, batches)
            finally:
                net.close()
    return found
