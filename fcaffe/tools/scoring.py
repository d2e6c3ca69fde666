"""Scoring: the outputs of a net over some batches, and their means."""

from __future__ import annotations

import numpy as np

from fcaffe import log
from fcaffe.net import Net


def score(net: Net, iterations: int) -> None:
    """Run this many batches forward; log every output of each batch, then the mean loss and the mean outputs."""
    log.running_for(iterations)
    to_numpy = net.context.engine.to_numpy
    loss = np.float32(0)
    sums = [np.zeros(blob.count, np.float32) for _, blob, _ in net.outputs()]
    for batch in range(iterations):
        loss += np.float32(net.forward())
        for total, (name, blob, _) in zip(sums, net.outputs(), strict=True):
            values = to_numpy(blob.data).reshape(-1)
            total += values
            for value in values:
                log.batch_output(batch, name, float(value))
    log.mean_loss(float(loss) / iterations)
    for total, (name, _, weight) in zip(sums, net.outputs(), strict=True):
        for value in total:
            log.mean_output(name, float(value) / iterations, weight)
