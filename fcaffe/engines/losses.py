"""SoftmaxWithLoss in plain array code."""

from __future__ import annotations

from typing import Any

from fcaffe.engines.normalization import PlainNormalization

Array = Any

SMALLEST = 1.1754943508222875e-38  # FLT_MIN: probabilities below it count as this before the logarithm


class PlainLosses(PlainNormalization):
    """Scores and probabilities have the classes on `axis`; `labels` has one value for each position of the other axes.

    A position counts unless its label, truncated to an integer, is `ignored` (None: all count). `valid`, `loss` and
    `slope` are float32 arrays without axes, so no operator waits for a device. `divisor` None stands for the number of
    positions that count, at least 1.
    """

    def softmax_loss_forward(
        self,
        scores: Array,
        labels: Array,
        probability: Array,
        loss: Array,
        valid: Array,
        axis: int,
        ignored: int | None,
        divisor: float | None,
    ) -> None:
        """probability = softmax(scores); valid = the number of positions that count; loss = the sum of their
        -log(probability of the label) over the divisor, NaN if a label is no class."""
        xp = self.xp
        self.softmax_forward(self.as_float32(scores), probability, axis)
        classes, skipped, none = self._loss_labels(labels, probability, axis, ignored)
        true = xp.take_along_axis(probability, classes, axis)
        losses = xp.where(none, xp.float32("nan"), -xp.log(xp.maximum(true, SMALLEST)))
        valid[...] = losses.size
        if skipped is not None:
            losses = xp.where(skipped, 0, losses)
            valid -= skipped.sum()
        loss[...] = losses.sum() / self._loss_divisor(valid, divisor)

    def softmax_loss_backward(
        self,
        probability: Array,
        labels: Array,
        dx: Array,
        slope: Array,
        valid: Array,
        axis: int,
        ignored: int | None,
        divisor: float | None,
    ) -> None:
        """dx = slope times the gradient of the scores, from the results of softmax_loss_forward. Undefined where
        a label is no class."""
        xp = self.xp
        scale = slope / self._loss_divisor(valid, divisor)
        classes, skipped, _ = self._loss_labels(labels, probability, axis, ignored)
        gradients = dx if dx.dtype == probability.dtype else xp.empty_like(probability)
        xp.multiply(probability, scale, out=gradients)
        true = xp.take_along_axis(probability, classes, axis)
        xp.put_along_axis(gradients, classes, scale * (true - 1), axis)
        if skipped is not None:
            xp.copyto(gradients, 0, where=skipped)
        if gradients is not dx:
            self.copy(gradients, dx)

    def _loss_divisor(self, valid: Array, divisor: float | None) -> Any:
        return self.xp.maximum(valid, 1) if divisor is None else divisor

    def _loss_labels(
        self, labels: Array, scores: Array, axis: int, ignored: int | None
    ) -> tuple[Array, Array | None, Array]:
        """The classes (0 where a label is none), where labels are ignored (None if nowhere), and where they are wrong.

        All three have the shape of the scores with one class.
        """
        shape = (*scores.shape[:axis], 1, *scores.shape[axis + 1 :])
        classes = labels.reshape(shape).astype(self.xp.int64)
        wrong = (classes < 0) | (classes >= scores.shape[axis])
        skipped = None if ignored is None else classes == ignored
        if skipped is not None:
            wrong &= ~skipped
            classes = self.xp.where(skipped, 0, classes)
        return self.xp.where(wrong, 0, classes), skipped, wrong
