"""Testing: the mean outputs of a test net with the training net's weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fcaffe import log
from fcaffe.net.weights import share_weights
from fcaffe.solvers.run import Run


def test(run: Run, index: int, asked_to_stop: Callable[[], bool]) -> None:
    """Log the mean of every output over test_iter batches of test net `index`, unless `asked_to_stop` ends the test.

    Workers take turns with the batches. Worker 0 adds them in their order, so that the sums equal those of one worker.
    """
    log.testing(run.iteration, index)
    net, batches, several = run.test_nets[index], run.param.test_iter[index], run.workers.size > 1
    share_weights(net, run.net)
    if several and asked_to_stop():  # they have different batches, but must agree once
        return log.test_interrupted()
    mine = []
    for batch in range(batches):
        if not net.context.turns.mine(batch):
            continue
        if not several and asked_to_stop():
            return log.test_interrupted()
        for observer in run.observers:
            observer.test_batch_begins()
        loss = net.forward()
        values = [run.engine.to_numpy(blob.data).reshape(-1) for _, blob, _ in net.outputs()]
        mine.append((loss, np.concatenate([np.zeros(0, np.float32), *values])))
    net.complete()  # before the weights change
    gathered = run.workers.gather(mine)
    if gathered is None:
        return
    counts = [blob.count for _, blob, _ in net.outputs()]
    total, scores = np.float32(0), np.zeros(sum(counts), np.float32)
    for batch in range(batches):
        loss, values = gathered[batch % len(gathered)][batch // len(gathered)]
        total += np.float32(loss)
        scores += values
    if run.param.test_compute_loss:
        log.test_loss(float(total / np.float32(batches)))
    means = np.split(scores / np.float32(batches), np.cumsum(counts, dtype=int))[:-1]  # empty for a net without outputs
    log.net_outputs("Test", net.outputs(), means)
    outputs = [(name, values, weight) for (name, _, weight), values in zip(net.outputs(), means, strict=True)]
    for observer in run.observers:
        observer.test_ends(index, outputs)
