"""What a net confuses: its guesses on test data against the labels, and the pictures that it is most wrong about."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe.net import Net
from fcaffe.tools.timing import time_forward

WORST = 24  # pictures that are kept
CLASSES = 10_000  # more are told apart by no table
SCORING = ("Accuracy", "SoftmaxWithLoss", "MultinomialLogisticLoss", "HingeLoss")  # bottoms: scores, labels


@dataclass(order=True)
class Mistake:
    """A sample whose guess is wrong: the probability that the net gave to its guess, and its picture (C, H, W)."""

    probability: float
    number: int
    label: int = field(compare=False)
    guess: int = field(compare=False)
    values: np.ndarray = field(compare=False)


@dataclass
class Evaluation:
    """`counts` (K, K) has for each label (row) how often each class was the guess; `seconds` of a forward pass for each
    layer; `worst` begins with the surest mistake."""

    counts: np.ndarray
    worst: list[Mistake]
    seconds: list[float]

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.counts)) / max(self.samples, 1)


def evaluate(net: Net, batches: Iterable[Any]) -> Evaluation | None:
    """Run a batch for each of `batches` through a net that runs its layers one by one. None if nothing in it compares
    the scores of classes with one label a sample."""
    scoring = next((node for node in net.nodes if node.layer.type in SCORING), None)
    if scoring is None or len(scoring.bottoms) < 2:
        return None
    scores_blob, labels_blob = scoring.bottoms[:2]
    classes = scores_blob.count // max(1, labels_blob.count)
    if scores_blob.shape[:1] != (labels_blob.count,) or not 1 < classes <= CLASSES:
        return None
    pictures = next((blob for node in net.nodes for blob in node.tops if len(blob.shape) == 4), None)
    to_numpy, seconds = net.context.engine.to_numpy, [0.0] * len(net.nodes)
    counts, worst, seen, passes = np.zeros((classes, classes), np.int64), list[Mistake](), 0, 0
    for _ in batches:
        passes += 1
        time_forward(net, seconds)
        labels = to_numpy(labels_blob.data).reshape(-1).astype(int)
        chances = _probabilities(to_numpy(scores_blob.data).reshape(len(labels), classes))
        guesses = chances.argmax(axis=1)
        valid = (labels >= 0) & (labels < classes)
        np.add.at(counts, (labels[valid], guesses[valid]), 1)
        for index in np.flatnonzero(valid & (labels != guesses)):
            chance = float(chances[index, guesses[index]])
            if len(worst) == WORST and chance <= worst[0].probability:
                continue
            values = to_numpy(pictures.data[index]).copy() if pictures is not None else np.zeros((1, 1, 1))
            mistake = Mistake(chance, seen + int(index), int(labels[index]), int(guesses[index]), values)
            (heapq.heappushpop if len(worst) == WORST else heapq.heappush)(worst, mistake)
        seen += len(labels)
    return Evaluation(counts, sorted(worst, reverse=True), [one / max(passes, 1) for one in seconds])


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """Softmax along axis 1, unless the rows are probabilities already."""
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return scores
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
