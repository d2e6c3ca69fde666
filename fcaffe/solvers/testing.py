"""Testing: the outputs of a test net with the training net's weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from fcaffe import log
from fcaffe.net.weights import share_weights
from fcaffe.rng.counter import TEST, Moment
from fcaffe.solvers.evaluation import collectors
from fcaffe.solvers.run import Run


def test(run: Run, index: int, asked_to_stop: Callable[[], bool]) -> None:
    """Log the mean of every output over test_iter batches of test net `index`, unless `asked_to_stop` ends the test.

    All workers call `asked_to_stop` together, before every second batch of each. They take turns with the batches, or
    worker 0 has all of them. It adds them in their order, so that the sums equal those of one worker.
    """
    log.testing(run.iteration, index)
    net, batches, several = run.test_nets[index], run.param.test_iter[index], run.workers.size > 1
    turns = net.context.turns
    share_weights(net, run.net)
    mine = []
    for batch in range(batches):
        turn = batch % turns.size
        if turn == 0 and (not several or batch // turns.size % 2 == 0) and asked_to_stop():
            return log.test_interrupted()
        if not turns.mine(batch) or run.workers.rank >= turns.size:
            continue
        for observer in run.observers:
            observer.test_batch_begins()
        loss = net.forward(moment=Moment(TEST + index, run.iteration, batch))
        for observer in run.observers:
            observer.test_batch_ends(index)
        mine.append((loss, [run.engine.to_numpy(blob.data).reshape(-1).copy() for _, blob, _ in net.outputs()]))
    net.complete()  # before the weights change
    if turns.size < run.workers.size:  # worker 0 has had all batches, in which layers may have changed weights
        run.workers.broadcast(run.data[: run.net.parameters.exchanged])
    gathered = run.workers.gather(mine)
    if gathered is None:
        return
    total, collected = np.float32(0), collectors(net, run.param.ap_version, run.param.show_per_class_result)
    for batch in range(batches):
        loss, outputs = gathered[batch % turns.size][batch // turns.size]
        total += np.float32(loss)
        for collector, values in zip(collected, outputs, strict=True):
            collector.add(values)
    if run.param.test_compute_loss:
        log.test_loss(float(total / np.float32(batches)))
    results = [collector.result() for collector in collected]
    log.net_outputs("Test", net.outputs(), results)
    named = [(name, values, weight) for (name, _, weight), values in zip(net.outputs(), results, strict=True)]
    for observer in run.observers:
        observer.test_ends(index, named)


@contextlib.contextmanager
def mean_statistics(run: Run) -> Iterator[None]:
    """Replace the statistics by their mean over the workers, for a test or a snapshot in the body. Collective."""
    blobs = [blob for layer in run.net.layers for blob in layer.running_statistics]
    if run.workers.size == 1 or run.context.sync_batch_norm or not blobs:
        yield
        return
    own = [blob.data.copy() for blob in blobs]
    try:
        for blob in blobs:
            blob.mutable_data[...] = run.workers.sum_array(blob.data) / np.float32(run.workers.size)
        yield
    finally:
        for blob, values in zip(blobs, own, strict=True):
            blob.mutable_data[...] = values
