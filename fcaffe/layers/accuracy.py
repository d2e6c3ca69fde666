"""Accuracy: how often the true class has one of the highest scores."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.layers.labels import check_label_count, read_labels, total_of_labels
from fcaffe.net import ALL_BOTTOMS, Blob, Half, Layer, Traits, placements, register


@register("Accuracy")
class Accuracy(Layer):
    """top = the fraction of labels whose score is among the top_k; the second top has it per class.

    Bottoms: scores, with the classes on `axis`; one label per position. A class with the score of the true one counts
    as better. Where there is nothing to count, 0. The counts are over all workers: their accuracies add up.
    """

    traits = Traits(bottoms=2, tops=(1, 2), half=Half.FIRST, labels=ALL_BOTTOMS)
    rule = placements.positions_summed(lambda layer: layer.param.accuracy_param.axis, of_classes=True)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        ignores = self._ignored_label() is not None
        self.traits = replace(self.traits, needs_host=len(top) > 1 or (ignores and self.workers.size > 1))
        if ignores or len(top) > 1:  # the numbers of labels that count, or of those of each class
            self.workers.run_shards_in_step()

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.accuracy_param
        self.axis = bottom[0].canonical_axis(p.axis)
        check_label_count(self, bottom, self.axis)
        classes = bottom[0].shape[self.axis]
        if not 1 <= p.top_k <= classes:
            raise self.error(f"top_k must be from 1 to the {classes} classes, not {p.top_k}")
        top[0].reshape()
        if len(top) > 1:
            top[1].reshape(classes)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, top_k, workers = self.xp, self.param.accuracy_param.top_k, self.workers
        labels, ignored, wrong = read_labels(self, bottom, self.axis, self._ignored_label())
        scores = self.engine.as_float32(bottom[0].data)
        true = xp.take_along_axis(scores, xp.expand_dims(labels, self.axis), self.axis)
        better = (scores >= true).sum(axis=self.axis) - 1  # the true class is one of them
        right = better < top_k
        if ignored is not None:
            right &= ~ignored
        total = labels.size if ignored is None else labels.size - ignored.sum()
        fraction = right.sum() / total_of_labels(self, total, bottom[1])
        top[0].data[...] = xp.where(wrong.any(), xp.nan, fraction)
        if len(top) > 1:
            counted = labels if ignored is None else labels[~ignored]
            classes = scores.shape[self.axis]
            of_class = workers.sum_array(xp.bincount(counted.reshape(-1), minlength=classes).astype(xp.float32))
            right_of_class = xp.bincount(labels[right], minlength=classes)
            top[1].data[...] = right_of_class / xp.maximum(of_class, 1)

    def _ignored_label(self) -> int | None:
        p = self.param.accuracy_param
        return p.ignore_label if p.HasField("ignore_label") else None
