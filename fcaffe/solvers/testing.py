"""Testing: the mean outputs of a test net with the training net's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fcaffe import log
from fcaffe.net.weights import share_weights

if TYPE_CHECKING:
    from fcaffe.solvers.solver import Solver


def test(solver: Solver, index: int) -> None:
    """Log the mean of every output over test_iter batches of test net `index`.

    Workers take the batches in turns; worker 0 adds them up in their order, so that the sums are those of one worker.
    """
    log.testing(solver.iteration, index)
    net, batches, several = solver.test_nets[index], solver.param.test_iter[index], solver.workers.size > 1
    share_weights(net, solver.net)
    if several and solver.stop_testing():  # they have different batches, but must agree at one place
        return log.test_interrupted()
    mine = []
    for batch in range(batches):
        if not net.context.turns.mine(batch):
            continue
        if not several and solver.stop_testing():
            return log.test_interrupted()
        for callback in solver.on_test_batch:
            callback()
        loss = net.forward()
        values = [solver.engine.to_numpy(blob.data).reshape(-1) for _, blob, _ in net.outputs()]
        mine.append((loss, np.concatenate([np.zeros(0, np.float32), *values])))
    everyones = solver.workers.gather(mine)
    if everyones is None:
        return
    total, scores = np.float32(0), np.zeros(sum(blob.count for _, blob, _ in net.outputs()), np.float32)
    for batch in range(batches):
        loss, values = everyones[batch % len(everyones)][batch // len(everyones)]
        total += np.float32(loss)
        scores += values
    if solver.param.test_compute_loss:
        log.test_loss(float(total / np.float32(batches)))
    means = iter(scores / np.float32(batches))
    position = 0
    for name, blob, weight in net.outputs():
        for _ in range(blob.count):
            log.net_output("Test", position, name, float(next(means)), weight)
            position += 1
