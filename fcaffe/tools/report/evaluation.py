"""Evaluation of a test net for a report: its confusion matrix and its worst mistakes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fcaffe.net import Net

WORST = 24  # mistakes with a picture in the page
CLASSES = 10_000  # largest number of classes for which a matrix is counted
SCORING = ("Accuracy", "SoftmaxWithLoss", "MultinomialLogisticLoss", "HingeLoss")  # bottoms: scores, labels


@dataclass
class Mistake:
    """A sample that the net guesses wrong: the probability of the guess, and the picture (C, H, W)."""

    probability: float
    label: int
    guess: int
    values: np.ndarray


@dataclass
class Evaluation:
    """The result of `evaluate`.

    `counts[label, guess]` is a number of samples; `worst` has the mistakes of the highest probability first; `moment`
    says which weights were evaluated, such as "at iteration 100".
    """

    counts: np.ndarray
    worst: list[Mistake]
    moment: str = ""

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.counts)) / max(self.samples, 1)


def evaluate(net: Net, batches: Iterable[object], moment: str) -> Evaluation | None:
    """Run the net once for each item of `batches`.

    Returns None if no layer compares the scores of classes with one label a sample.
    """
    scoring = next((node for node in net.nodes if node.layer.type in SCORING), None)
    if scoring is None or len(scoring.bottoms) < 2:
        return None
    scores_blob, labels_blob = scoring.bottoms[:2]
    classes = scores_blob.count // max(1, labels_blob.count)
    if scores_blob.shape[:1] != (labels_blob.count,) or not 1 < classes <= CLASSES:
        return None
    pictures = next((blob for node in net.nodes for blob in node.tops if len(blob.shape) == 4), None)
    to_numpy = net.context.engine.to_numpy
    counts, worst = np.zeros((classes, classes), np.int64), list[Mistake]()
    for _ in batches:
        net.forward()
        labels = to_numpy(labels_blob.data).reshape(-1).astype(int)
        probabilities = _probabilities(to_numpy(scores_blob.data).reshape(len(labels), classes))
        guesses = probabilities.argmax(axis=1)
        valid = (labels >= 0) & (labels < classes)
        np.add.at(counts, (labels[valid], guesses[valid]), 1)
        wrong = np.flatnonzero(valid & (labels != guesses))
        of_guess = probabilities[wrong, guesses[wrong]]
        for index in wrong[np.argsort(-of_guess, kind="stable")[:WORST]]:
            values = to_numpy(pictures.data[index]).copy() if pictures is not None else np.zeros((1, 1, 1))
            probability = float(probabilities[index, guesses[index]])
            worst.append(Mistake(probability, int(labels[index]), int(guesses[index]), values))
        worst = sorted(worst, key=lambda mistake: -mistake.probability)[:WORST]
    return Evaluation(counts, worst, moment)


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """Softmax along axis 1, unless the rows are probabilities already."""
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return scores
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
