"""Connectionist temporal classification (Graves et al., 2006) as OCR forks have it: losses, and greedy decoding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fcaffe.layers.loss import NONE, LossLayer, normalization
from fcaffe.net import ALL_BOTTOMS, Array, Blob, Layer, Traits, register
from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.placements import Placements, Shard, common, total_of
from fcaffe.proto import forks


def log_alphas(emissions: Array, states: Array, blank: int) -> Array:
    """(T, N, S): log of the probability that a path through the first steps ends in the state."""
    alphas = np.empty(emissions.shape)
    before = np.full((len(states), states.shape[1] + 2), -np.inf)  # the alphas of the last step, behind two states
    before[:, 1] = 0
    skips = np.where(states == blank, -np.inf, 0)
    skips[:, 2:][states[:, 2:] == states[:, :-2]] = -np.inf
    for alpha, emission in zip(alphas, emissions, strict=True):
        moves = np.logaddexp(before[:, 2:], before[:, 1:-1])
        np.add(np.logaddexp(moves, before[:, :-2] + skips), emission, out=alpha)
        before[:, 1], before[:, 2:] = -np.inf, alpha
    return alphas


@silent_arithmetic
def ctc(x: Array, labels: Array, durations: Array, blank: int) -> tuple[Array, Array]:
    """-log of the probability of the labels of each sequence, and its derivative by the scores x (T, N, C).

    Both are 0 without a possible alignment. Rows of labels (N, L) are padded with -1.
    """
    steps, count, classes = x.shape
    states = np.full((count, 2 * labels.shape[1] + 1), blank)
    states[:, 1::2] = np.where(labels < 0, blank, labels)
    x = x - x.max(axis=2, keepdims=True)
    exponentials = np.exp(x)
    totals = exponentials.sum(axis=2, keepdims=True, dtype=np.float64)
    emissions = np.take_along_axis(x, states[None], 2) - np.log(totals)
    times = durations[:, None] - 1 - np.arange(steps)[:, None, None]
    order = 2 * (labels >= 0).sum(axis=1, keepdims=True) - np.arange(states.shape[1])
    reverse = np.maximum(times, 0), np.arange(count)[:, None], np.maximum(order, 0)
    alphas = log_alphas(emissions, states, blank)
    betas = log_alphas(emissions[reverse], states[reverse[1:]], blank)[reverse]  # those of the reversed sequences
    joint = np.where((alphas != -np.inf) & (times >= 0) & (order >= 0), alphas + betas - emissions, -np.inf)
    likelihood = np.logaddexp.reduce(joint, axis=2)[:1].sum(axis=0)
    index = (np.arange(steps * count).reshape(steps, count, 1) * classes + states).reshape(-1)
    posteriors = np.bincount(index, np.exp(joint - likelihood[:, None]).reshape(-1), x.size).reshape(x.shape)
    aligned = likelihood != -np.inf
    gradients = np.where((times >= 0) & aligned[:, None], exponentials / totals - posteriors, 0)
    return np.where(aligned, -likelihood, 0), gradients


def edit_distances(a: Array, b: Array) -> Array:
    """Of each pair of rows, which are padded with -1."""
    columns = np.arange(b.shape[1] + 1)
    row = np.tile(columns, (len(b), 1))  # distances of the first labels of a from the first ones of b
    for index, label in enumerate(a.T[..., None]):
        changed = np.minimum(row[:, 1:] + 1, row[:, :-1] + (label != b))
        changed = np.insert(changed, 0, index + 1, axis=1) - columns
        row = np.where(label < 0, row, np.minimum.accumulate(changed, axis=1) + columns)
    return np.take_along_axis(row, (b >= 0).sum(axis=1, keepdims=True), 1)[:, 0]


def compacted(values: Array, kept: Array) -> Array:
    """The kept values of each row, padded with -1."""
    moved = np.take_along_axis(values, np.argsort(~kept, axis=1, kind="stable"), 1)
    return np.where(np.arange(values.shape[1]) < kept.sum(axis=1, keepdims=True), moved, -1)


class Sequences(Layer):
    """Base of layers with scores (T, N, C) of N sequences as first bottom."""

    fork = forks.OCR

    def begin(self, bottom: list[Blob], axes: tuple[int, ...], blank: int) -> None:
        """Set `scores`, the shape (T, N, C), and the blank; -1 is the last class. The axes are those of N."""
        self.scores = (*bottom[0].shape, 0, 0)[:3]
        fits = all(b.shape[n : n + 1] == self.scores[1:2] for b, n in zip(bottom, axes, strict=False))
        if not fits or not -1 <= blank < self.scores[2]:
            raise self.error(f"needs (T, N, C), blank {blank} below C, and N in all: {self.named_shapes(bottom)}")
        self.blank = blank % self.scores[2]

    def read(self, blob: Blob, *shape: int) -> Array:
        return np.rint(self.engine.to_numpy(blob.data).reshape(shape)).astype(np.int64)

    def read_labels(self, blob: Blob, axis: int) -> Array:
        """(N, L): along axis 0 without blanks and negative numbers, along axis 1 up to the first one."""
        values = self.read(blob, -1, self.scores[1]).T if axis else self.read(blob, self.scores[1], -1)
        kept = (values >= 0) & (values != self.blank)
        return compacted(values, np.logical_and.accumulate(kept, axis=1) if axis else kept)

    def read_durations(self, indicators: list[Blob]) -> Array:
        """The numbers of steps before the second indicator 0 of each sequence; all of them without indicators."""
        ends = np.ones((self.scores[0] + 1, self.scores[1]), bool)
        ends[:-1] = self.read(indicators[0], *self.scores[:2]) == 0 if indicators else False
        ends[0] = self.scores[0] == 0
        return ends.argmax(axis=0)


@register("WarpCTCLoss")
@register("CTCLoss")
@register("CtcLoss")
class CTCLoss(Sequences, LossLayer):
    """top = the mean over the sequences of -log p(labels | softmax of the scores), over all alignments with the steps.

    Bottoms: scores (T, N, C); then labels (N, L), of which blanks and negative numbers are left out, and the blank is
    class 0; or indicators (T, N), 0 where a sequence begins, and labels (L, N) up to a blank or negative number; or
    numbers of steps (N) and of labels (N), and labels (L, N). In these the blank is the last class. As in the forks
    the gradient is that of the sum, not of the mean, unless loss_param has a `normalization`; NONE is the sum.
    """

    traits = replace(LossLayer.traits, needs_host=True, bottoms=(2, 4), labels=(1, 2, 3))
    axes = {2: (1, 0), 3: (1, 1, 1), 4: (1, 0, 0, 1)}  # of the sequences, by the number of bottoms

    def rule(self, bottom: list[Blob]) -> Placements:
        placement = common(self, bottom[:1], lambda shard: shard.axis == 1)
        axes = self.axes[len(bottom)]
        needed = [replace(placement, axis=axis) if isinstance(placement, Shard) else placement for axis in axes]
        return needed, [total_of(placement)]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.ctc_loss_param
        blank = p.blank_label if len(bottom) == 2 and not p.HasField("blank_index") else p.blank_index
        self.begin(bottom, self.axes[len(bottom)], blank)
        given = p.time_step or self.scores[0], p.alphabet_size or self.scores[2]
        if given != self.scores[::2] or p.output_delay or p.preprocess_collapse_repeated or not p.ctc_merge_repeated:
            raise self.error(f"time_step and alphabet_size must fit {self.scores}; only the blank may be set besides")
        self.gradients[0].reshape(*bottom[0].shape)
        top[0].reshape()

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        steps, count, classes = self.scores
        labels = self.read_labels(bottom[-1], self.axes[len(bottom)][-1])
        durations = self.read_durations(bottom[1:2] if len(bottom) == 3 else [])
        if len(bottom) == 4:
            durations, lengths = (self.read(blob, count) for blob in bottom[1:3])
            labels[np.arange(labels.shape[1]) >= lengths[:, None]] = -1
        if labels.max(initial=0) >= classes or durations.max(initial=0) > steps:
            raise self.error(f"scores {self.scores} for labels up to {labels.max()} and {durations.max()} steps")
        scores = self.engine.to_numpy(bottom[0].data).reshape(self.scores)
        losses, gradients = ctc(scores, labels, durations, self.blank)
        self.store(gradients)
        mode, samples = normalization(self.param.loss_param, -1), max(1.0, self.over_workers(count, bottom[0]))
        self.samples = samples if mode not in (-1, NONE) else 1.0
        top[0].data[...] = losses.sum() / (1 if mode == NONE else samples)


@register("CTCGreedyDecoder")
class CTCGreedyDecoder(Sequences):
    """top = the best class of each step, without repetitions and blanks: sequences (N, T, 1, 1), padded with -1.

    Bottoms: scores (T, N, C). With labels (N, L) the top is (1, 2, 1, 1) instead: the mean of 1 - edit distance /
    length, and the fraction of right sequences. If the second bottom is indicators (T, N), the top is (T, N, 1, 1),
    and with labels (L, N) as third bottom a second top has that mean.
    """

    traits = Traits(bottoms=(1, 3), tops=(1, 2), in_place=False, needs_host=True, labels=ALL_BOTTOMS)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.marked = len(bottom) == 3 or (len(bottom) == 2 and bottom[0].shape[:2] == bottom[1].shape[:2])
        self.compares = len(bottom) == 2 + self.marked
        p, axes = self.param.ctc_decoder_param, (1, 1, 1) if self.marked else (1, 0)
        self.begin(bottom, axes, p.blank_index if p.HasField("blank_index") or self.marked else 0)
        if len(top) > 1 + (self.marked and self.compares):
            raise self.error("has a second top only with indicators and labels")
        shape = self.scores[:2] if self.marked else (1, 2) if self.compares else self.scores[1::-1]
        for blob, sizes in zip(top, (shape, (1, 1)), strict=False):
            blob.reshape(*sizes, 1, 1)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        best = self.engine.to_numpy(bottom[0].data).reshape(self.scores).argmax(axis=2).T
        kept = np.arange(best.shape[1]) < self.read_durations(bottom[1:2] if self.marked else [])[:, None]
        kept &= best != self.blank
        if self.param.ctc_decoder_param.ctc_merge_repeated:
            kept[:, 1:] &= best[:, 1:] != best[:, :-1]
        found = compacted(best, kept)
        results = [found.T if self.marked else found]
        if self.compares:
            labels = self.read_labels(bottom[-1], int(self.marked))
            lengths, errors = np.maximum((labels >= 0).sum(axis=1), kept.sum(axis=1)), edit_distances(found, labels)
            right = np.stack([1 - errors / np.maximum(lengths, 1), (errors == 0) & (lengths > 0)]).mean(axis=1)
            results = [*results, right[:1]] if self.marked else [right]
        for blob, values in zip(top, results, strict=False):
            blob.data[...] = self.engine.from_numpy(np.float32(values)).reshape(blob.shape)
