"""Tests: a test net's outputs with the training net's weights. Their means, and the average precision of detections."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import SolverError
from fcaffe.net import Net
from fcaffe.net.weights import share_weights
from fcaffe.rng.counter import TEST, Moment
from fcaffe.solvers.run import Run

AP_VERSIONS = ("Integral", "MaxIntegral", "11point")
ROW = 5  # image or -1, label, score or number of objects, true, false: of DetectionEvaluate


class MeanOutput:
    """The mean of an output over the batches of a test, element by element; NaN without batches.

    An output whose number of values changes, such as that of DetectionOutput, has none.
    """

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.sum = np.zeros(count, np.float32)
        self.batches = 0
        self.varies = False

    def add(self, values: np.ndarray) -> None:
        """Add the flat values of the next batch."""
        if not self.batches:
            self.sum = np.zeros(values.shape, np.float32)
        self.batches += 1
        if values.shape == self.sum.shape:
            self.sum += values
        elif not self.varies:
            self.varies = True
            log.warning(f'The output "{self.name}" has no mean, for its number of values changes from batch to batch')

    def result(self) -> np.ndarray:
        return np.zeros(0, np.float32) if self.varies else self.sum / np.float32(self.batches)


class Detections:
    """The mean average precision of the rows of a DetectionEvaluate layer, as SSD's solver computes it.

    The mean is over all classes but the background. A class without objects, or without detections, counts with 0. With
    `classes` the rows are those of YOLO's EvalDetection: `length` values for each image.
    """

    def __init__(self, version: str, per_class: bool, classes: int = 0, length: int = ROW) -> None:
        self.version, self.per_class = version, per_class
        self.classes, self.length = classes, length
        self.rows: list[np.ndarray] = []

    def add(self, values: np.ndarray) -> None:
        """Add the rows of the next batch, flat."""
        rows = values.reshape(-1, self.length)
        if self.classes:
            counts, found = rows[:, : self.classes].sum(axis=0), rows[:, self.classes :].reshape(-1, ROW - 1)
            table = np.full((self.classes, ROW), -1, np.float32)
            table[:, 1], table[:, 2] = np.arange(self.classes), counts
            rows = np.concatenate([table, np.insert(found, 0, 0, axis=1)])
        self.rows.append(rows.copy())

    def result(self) -> np.ndarray:
        """The mean; logs the precision of each class if `per_class`."""
        rows = np.concatenate([np.empty((0, ROW), np.float32), *self.rows])
        counts, rows = rows[rows[:, 0] == -1], rows[(rows[:, 0] != -1) & (rows[:, 3] + rows[:, 4] > 0)]
        precisions = []
        for label in np.unique(counts[:, 1]):
            objects = int(counts[counts[:, 1] == label, 2].sum())
            found = rows[rows[:, 1] == label]
            if not len(found):
                log.missing_detections(int(label))
            precisions.append(average_precision(found[:, 2], found[:, 3] > 0, objects, self.version))
            if self.per_class:
                log.class_precision(int(label), precisions[-1])
        return np.array([np.mean(precisions) if precisions else 0], np.float32)


def average_precision(scores: np.ndarray, true: np.ndarray, objects: int, version: str) -> float:
    """The average precision of detections of one class, with these scores, of which some are true.

    `objects` is the number of objects to find. Versions: "Integral", the area under precision over recall;
    "MaxIntegral", with the largest precision at this recall or a larger one instead of each (VOC 2012); "11point", the
    mean of that at the recalls 0, 0.1 ... 1 (VOC 2007).
    """
    if not len(scores) or not objects:
        return 0.0
    found = np.cumsum(true[np.argsort(-scores, kind="stable")])
    precision = found / np.arange(1, len(found) + 1)
    recall = (found / objects).astype(np.float32)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    if version == "11point":
        first = np.searchsorted(recall, np.arange(11) / 10)  # index of the first detection with this recall
        return float(np.append(best, 0)[first].mean())
    return float((np.diff(recall, prepend=0) * (best if version == "MaxIntegral" else precision)).sum())


def collectors(net: Net, version: str = AP_VERSIONS[0], per_class: bool = False) -> list[MeanOutput | Detections]:
    """The collector of each output of a net: of its mean, or of the mean average precision of a DetectionEvaluate
    or EvalDetection layer."""
    writers = {blob: node.layer for node in net.nodes for blob in node.tops}
    found: list[MeanOutput | Detections] = []
    for name, blob, _ in net.outputs():
        kind = writers[blob].type
        if kind == "DetectionEvaluate":
            found.append(Detections(version, per_class))
        elif kind == "EvalDetection":
            classes = writers[blob].param.eval_detection_param.num_class
            found.append(Detections(version, per_class, classes, blob.shape[1]))
        else:
            found.append(MeanOutput(name, blob.count))
    return found


def check_evaluation(param: Any, test_nets: Sequence[Net]) -> None:
    """SolverError unless the test nets can be evaluated as the solver's eval_type and ap_version say."""
    if param.eval_type not in ("classification", "detection"):
        raise SolverError(f'eval_type is "classification" or "detection", not "{param.eval_type}"')
    if param.ap_version not in AP_VERSIONS:
        raise SolverError(f'ap_version is one of {", ".join(AP_VERSIONS)}, not "{param.ap_version}"')
    for index, net in enumerate(test_nets if param.eval_type == "detection" else ()):
        if not any(isinstance(one, Detections) for one in collectors(net)):
            raise SolverError(
                f'eval_type: "detection" needs an output of DetectionEvaluate or EvalDetection in test net #{index}; '
                'add one, or set eval_type: "classification"'
            )


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
