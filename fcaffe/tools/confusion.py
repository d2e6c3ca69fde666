"""How a net confuses classes: counts by label and guess, and the mistakes of which it is most sure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe.data.form import labels_beside
from fcaffe.net import Net

WORST = 24  # mistakes that are retained
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
    """The counts of a test.

    `counts[label, guess]` is a number of samples; `worst` has the mistakes of the highest probability first; `moment`
    says which weights were evaluated, such as "at iteration 100". `names` are those of the classes; `reads_all` is
    whether the samples are all records of the data set, the same number of times.
    """

    counts: np.ndarray
    worst: list[Mistake]
    moment: str = ""
    names: list[str] = field(default_factory=list)
    reads_all: bool = False

    def name(self, label: int) -> str:
        return self.names[label] if label < len(self.names) else str(label)

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.counts)) / max(self.samples, 1)

    def lines(self, most: int) -> Iterator[str]:
        """Yields the accuracy of each class, and its most frequent wrong guesses, `most` of them."""
        width = max(len(self.name(label)) for label in range(len(self.counts)))
        for label, row in enumerate(self.counts):
            total = int(row.sum())
            right = f"{row[label] / total:.2%}" if total else "-"
            wrong = [guess for guess in np.argsort(-row, kind="stable")[: most + 1] if guess != label and row[guess]]
            said = ", ".join(f"{self.name(guess)} {row[guess]}" for guess in wrong[:most])
            yield f"{self.name(label):{width}}  {right:>8} of {total}" + (f"; taken for {said}" if said else "")


class Confusion:
    """Counts the guesses of a net for classes, batch by batch."""

    def __init__(self, net: Net) -> None:
        self.net = net
        scoring = next((node for node in net.nodes if node.layer.type in SCORING), None)
        self.classes = 0  # of a net that has no scores of classes with one label a sample
        if scoring is not None and len(scoring.bottoms) > 1:
            self.scores, self.labels = scoring.bottoms[:2]
            classes = self.scores.count // max(1, self.labels.count)
            if self.scores.shape[:1] == (self.labels.count,) and 1 < classes <= CLASSES:
                self.classes = classes
        self.pictures = next((blob for node in net.nodes for blob in node.tops if len(blob.shape) == 4), None)
        if self.classes:
            net.expose(self.scores, self.labels, *(() if self.pictures is None else (self.pictures,)))
        self.clear()

    def clear(self) -> None:
        self.counts = np.zeros((self.classes, self.classes), np.int64)
        self.worst: list[Mistake] = []

    def add(self) -> None:
        """Count the batch that the net has just run."""
        if not self.classes:
            return
        to_numpy = self.net.context.engine.to_numpy
        labels = to_numpy(self.labels.data).reshape(-1).astype(int)
        probabilities = probabilities_of(to_numpy(self.scores.data).reshape(len(labels), self.classes))
        guesses = probabilities.argmax(axis=1)
        valid = (labels >= 0) & (labels < self.classes)
        np.add.at(self.counts, (labels[valid], guesses[valid]), 1)
        wrong = np.flatnonzero(valid & (labels != guesses))
        of_guess = probabilities[wrong, guesses[wrong]]
        for index in wrong[np.argsort(-of_guess, kind="stable")[:WORST]]:
            values = np.zeros((1, 1, 1)) if self.pictures is None else to_numpy(self.pictures.data[index]).copy()
            probability = float(probabilities[index, guesses[index]])
            self.worst.append(Mistake(probability, int(labels[index]), int(guesses[index]), values))
        self.worst = sorted(self.worst, key=lambda mistake: -mistake.probability)[:WORST]

    def result(self, moment: str) -> Evaluation | None:
        """The counts; None of a net that gives no scores of classes."""
        if not self.classes:
            return None
        records = _records(self.net)
        reads_all = bool(records) and self.counts.sum() % records == 0
        return Evaluation(self.counts, self.worst, moment, labels_of(self.net), reads_all)


def _reader(net: Net) -> Any:
    """The layer that reads the net's data set of pictures; None without one."""
    return next((node.layer for node in net.nodes if node.layer.type in ("Data", "ImageData")), None)


def labels_of(net: Net) -> list[str]:
    """The names of the classes, in the labels.txt beside the data set of a net; [] without one."""
    param = getattr(_reader(net), "param", None)
    return labels_beside(param.data_param.source or param.image_data_param.source) if param else []


def _records(net: Net) -> int:
    """The number of records of the net's data set; 0 if it is unknown."""
    if (reader := _reader(net)) is None:
        return 0
    source = reader.prefetcher.source
    return int(source.database.entries) if hasattr(source, "database") else len(source.images)


def probabilities_of(scores: np.ndarray) -> np.ndarray:
    """Softmax along axis 1, unless the rows are probabilities already."""
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return scores
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
