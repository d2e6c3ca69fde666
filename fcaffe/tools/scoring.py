"""Scoring: the outputs of a net over some batches, and their means."""

from __future__ import annotations

import numpy as np

from fcaffe import log
from fcaffe.net import Net
from fcaffe.solvers.evaluation import Detections, collectors


def score(net: Net, iterations: int, ap_version: str, per_class: bool) -> None:
    """Run this many batches forward; log every output of each batch, then the mean loss and the mean outputs.

    Of DetectionEvaluate layers only the mean average precision is logged, of this version, and with `per_class` that of
    each class.
    """
    log.running_for(iterations)
    to_numpy = net.context.engine.to_numpy
    loss = np.float32(0)
    collected = collectors(net, ap_version, per_class)
    for batch in range(iterations):
        loss += np.float32(net.forward())
        for collector, (name, blob, _) in zip(collected, net.outputs(), strict=True):
            values = to_numpy(blob.data).reshape(-1)
            collector.add(values)
            for value in () if isinstance(collector, Detections) else values:
                log.batch_output(batch, name, float(value))
    log.mean_loss(float(loss) / iterations)
    for collector, (name, _, weight) in zip(collected, net.outputs(), strict=True):
        for value in collector.result():
            log.mean_output(name, float(value), weight)
