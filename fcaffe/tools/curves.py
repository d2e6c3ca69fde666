"""The curves of a training as named series, for the pictures of `plot` and `plot_training_log` and for report pages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcaffe.log.reader import Curve, TrainingLog

# Kinds of series. A score is a test output between 0 and 1 that is no loss, such as an accuracy.
TRAIN_LOSS, TEST_LOSS, SCORE, OTHER_OUTPUT, RATE = "train loss", "test loss", "test accuracy", "test output", "rate"
WINDOW = 1 / 20  # share of a curve's points in the running mean


class Series(NamedTuple):
    """A curve with its kind, its name, and the second of each of its points since the training began."""

    kind: str
    name: str
    curve: Curve
    seconds: Curve


def series_of(log: TrainingLog) -> list[Series]:
    """All series of a log that have points.

    The loss of a test net is the sum that Caffe logs, or else its parts. Several outputs of one name, such as
    accuracies by class, are numbered, and are no scores. The learning rate extends to the last iteration.
    """
    found = [Series(TRAIN_LOSS, "train loss", log.loss, log.seconds)]
    for number, net in sorted(log.test_nets.items()):
        suffix = f" (test net {number})" if len(log.test_nets) > 1 else ""
        if net.loss:
            found.append(Series(TEST_LOSS, f"test loss{suffix}", net.loss, net.seconds))
        for output in net.outputs.values():
            if output.is_loss and net.loss:
                continue
            same = [other for other in net.outputs.values() if other.name == output.name]
            is_score = len(same) == 1 and all(0 <= value <= 1 for value in output.curve.values())
            kind = TEST_LOSS if output.is_loss else SCORE if is_score else OTHER_OUTPUT
            name = output.name if len(same) == 1 else f"{output.name}/{same.index(output)}"
            found.append(Series(kind, f"test {name}{suffix}", output.curve, net.seconds))
    if log.rate:
        end = max(log.seconds, default=max(log.rate))
        found.append(Series(RATE, "learning rate", {**log.rate, end: log.rate[max(log.rate)]}, log.seconds))
    return [series for series in found if series.curve]


def smoothed(curve: Curve) -> Curve:
    """The running mean over WINDOW of the points. Values that are not finite stay as they are and do not count."""
    iterations = sorted(curve)
    values = np.array([curve[iteration] for iteration in iterations], np.float64)
    half = int(len(values) * WINDOW / 2)
    if half == 0:
        return curve
    finite = np.isfinite(values)
    sums, counts = (np.cumsum([0.0, *part]) for part in (np.where(finite, values, 0), finite))
    index = np.arange(len(values))
    width = np.minimum(half, np.minimum(index, index[::-1]))  # symmetric, so that a slope stays as it is,
    width = np.maximum(width, half // 2)  # except close to the ends
    first, last = np.maximum(index - width, 0), np.minimum(index + width + 1, len(values))
    with np.errstate(all="ignore"):
        means = np.where(finite, (sums[last] - sums[first]) / (counts[last] - counts[first]), values)
    return dict(zip(iterations, means.tolist(), strict=True))
