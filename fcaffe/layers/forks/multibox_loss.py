"""MultiBoxLoss: SSD's loss. It matches priors with objects, mines negatives, and adds losses of boxes and classes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fcaffe import log
from fcaffe.data import boxes
from fcaffe.engines.losses import SMALLEST
from fcaffe.layers.c_order import copy_values
from fcaffe.layers.forks.detection_output import check_priors
from fcaffe.layers.forks.ground_truth import Objects, check_ground_truth, read_ground_truth
from fcaffe.layers.forks.smooth_l1 import smooth_l1, smooth_l1_slope
from fcaffe.layers.loss import BATCH_SIZE, FULL, NONE, VALID, FromForward, LossLayer, normalization
from fcaffe.net import Array, Blob, Traits, register
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks

Param = pb.MultiBoxLossParameter
NOT_MATCHED, LEFT_OUT = -1, -2  # instead of an object's index
SMALLEST_AREA = 1e-5  # of a box that suppression keeps


class Pairs(NamedTuple):
    """Priors that stand for an object, one of each array (M) for each of them.

    The kind of the codes is 0, or the label where each label has codes of its own.
    """

    images: np.ndarray
    priors: np.ndarray
    kinds: np.ndarray
    objects: np.ndarray

    def of(self, chosen: np.ndarray) -> Pairs:
        """The pairs for which this is true."""
        return Pairs(*(values[chosen] for values in self))


class Batch(NamedTuple):
    """Objects of N images, codes of boxes (N, P, kinds, 4) on the device, priors (P, 4) and their variances (P, 4)."""

    objects: Objects
    codes: Array
    priors: np.ndarray
    variances: np.ndarray


class Gradient(NamedTuple):
    """The gradient of a bottom in this shape: `values` at the indices `where`, 0 elsewhere."""

    shape: tuple[int, ...]
    where: Any
    values: Array


@register("MultiBoxLoss")
class MultiBoxLoss(LossLayer):
    """top = (loc_weight * loss of the boxes + loss of the classes) / divisor: a scalar of loss weight 1.

    Bottoms: codes of boxes (N, P * 4), or (N, P * classes * 4) without share_location; scores (N, P * classes); priors
    (1, 2, P * 4), and their variances; ground truth (1, 1, G, 8). The divisor is the number of matched priors, or that
    of loss_param.normalization: N * P if FULL, N if BATCH_SIZE, 1 if NONE; at least 1. A bottom with
    propagate_down: false adds nothing to the loss.

    Other than SSD's, a pass never uses the matches of the pass before, the targets of LOGISTIC without mining belong to
    their own images, and an nms_param without top_k sets no limit.
    """

    fork = forks.SSD
    traits = Traits(bottoms=4, tops=1, auto_tops=True, needs_host=True)
    gradients: Any = FromForward()  # of codes and scores, but for the divisor
    divisor: Any = FromForward()

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        p = self.param.multibox_loss_param
        self.mines = p.mining_type != Param.NONE
        self.mines_positives = p.mining_type == Param.HARD_EXAMPLE
        if p.num_classes < 1 or p.background_label_id >= p.num_classes:
            raise self.error("multibox_loss_param.num_classes must count the background, background_label_id")
        if p.HasField("do_neg_mining") and p.do_neg_mining != self.mines:
            raise self.error("do_neg_mining contradicts mining_type; remove it")
        if self.mines and not p.share_location:
            raise self.error("mines with share_location only; set mining_type: NONE")
        if self.mines_positives and p.sample_size < 1:
            raise self.error(f"sample_size must be positive, not {p.sample_size}")
        if p.HasField("ignore_difficult_gt"):
            log.warning(f'layer "{self.name}": ignore_difficult_gt, of {forks.YOLO}, has no effect')
        self.mode = normalization(self.param.loss_param, VALID)
        if self.mode not in (FULL, VALID, BATCH_SIZE, NONE):
            raise self.error("loss_param.normalization is one of VALID, FULL, BATCH_SIZE and NONE")
        if self.mode == VALID:
            self.refuse_shards(
                "divides by the number of matches in the whole batch (normalization: BATCH_SIZE or FULL does not)"
            )
        self.weights = [p.loc_weight, 1.0]
        for index, down in enumerate(self.param.propagate_down[:2]):
            self.weights[index] *= down

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.multibox_loss_param
        check_priors(self, bottom, p.num_classes, p.share_location)
        check_ground_truth(self, bottom[3])
        top[0].reshape()
        if "gradients" in vars(self) and math.prod(self.gradients[0].shape) != bottom[0].count:
            del self.gradients  # of a pass with another batch

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        batch, scores = self._read(bottom)
        matches, overlaps = self._match(batch)
        found = np.nonzero(matches >= 0)
        pairs = Pairs(found[0], found[1], found[2], matches[found])
        box_losses, box_slopes = self._box_losses(self._differences(batch, pairs))
        score_losses, score_slopes = self._score_losses(batch, pairs, scores)
        counted = np.ones(overlaps.shape, bool)
        if self.mines:
            ranks = self.engine.to_numpy(score_losses).reshape(overlaps.shape).copy()
            if self.mines_positives:
                ranks[pairs.images, pairs.priors] += self.engine.to_numpy(box_losses)
            counted = self._mine(batch, matches[:, :, 0], overlaps, ranks)
        of_pairs = counted[pairs.images, pairs.priors]
        pairs, kept = pairs.of(of_pairs), self._on_device(np.flatnonzero(of_pairs))
        rows = self._on_device(np.flatnonzero(counted))
        losses = box_losses[kept].sum(), score_losses[rows].sum()
        self.divisor = self._divisor(bottom, overlaps.size, len(pairs.images))
        top[0].data[...] = sum(w * loss for w, loss in zip(self.weights, losses, strict=True) if w) / self.divisor
        self.gradients = (
            Gradient(batch.codes.shape, self._of_codes(pairs), box_slopes[kept]),
            Gradient(scores.shape, rows, score_slopes[rows]),
        )

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return []

    def has_gradient(self, bottom_index: int) -> bool:
        return bottom_index != 3

    def allow_force_backward(self, bottom_index: int) -> bool:
        return bottom_index < 2

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[2]:
            bottom[2].diff[...] = 0
        for index in (0, 1):
            if propagate_down[index]:
                gradient = self.xp.zeros(self.gradients[index].shape, self.xp.float32)
                scale = top[0].diff * self.xp.float32(self.weights[index] / self.divisor)
                gradient[self.gradients[index].where] = self.gradients[index].values * scale
                copy_values(gradient, bottom[index].diff)

    # --- match, encode, mine ------------------------------------------------------------------------------------------

    def _read(self, bottom: list[Blob]) -> tuple[Batch, Array]:
        """The batch, and the scores (N * P, classes)."""
        p, images = self.param.multibox_loss_param, bottom[0].shape[0]
        priors, variances = self.engine.to_numpy(bottom[2].data).reshape(2, -1, 4)
        codes = bottom[0].data.reshape(images, len(priors), 1 if p.share_location else p.num_classes, 4)
        classes = None if p.map_object_to_agnostic else p.num_classes
        objects = read_ground_truth(self, bottom[3], classes, p.background_label_id)
        outside = (objects.images < 0) | (objects.images >= images)
        if outside.any():
            raise self.error(f"an object is in image {objects.images[outside.argmax()]} of a batch of {images}")
        if not p.use_difficult_gt:
            objects = objects.of(~objects.difficult)
        return Batch(objects, codes, priors, variances), bottom[1].data.reshape(-1, p.num_classes)

    def _match(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """The index of the object of each prior (N, P, kinds), or NOT_MATCHED or LEFT_OUT, and the largest overlap of
        each prior (N, P) with an object. With use_prior_for_matching: false predicted boxes stand for the priors."""
        p, objects = self.param.multibox_loss_param, batch.objects
        matches = np.full(batch.codes.shape[:3], NOT_MATCHED)
        overlaps = np.zeros(batch.codes.shape[:2], np.float32)
        predicted = None
        if not p.use_prior_for_matching:
            predicted = self._decoded(batch.codes, batch.priors[:, None], batch.variances[:, None])
        for image in np.unique(objects.images):
            there = np.flatnonzero(objects.images == image)
            if predicted is None:
                found, overlaps[image] = self._match_boxes(batch.priors, objects, there)
                matches[image, np.arange(len(found)), 0 if p.share_location else objects.labels[found]] = found
            elif p.share_location:
                matches[image, :, 0], overlaps[image] = self._match_boxes(predicted[image, :, 0], objects, there)
            else:
                for label in np.unique(objects.labels[there]):
                    of_label = there[objects.labels[there] == label]
                    matches[image, :, label], _ = self._match_boxes(predicted[image, :, label], objects, of_label)
        return matches, overlaps

    def _match_boxes(self, found: np.ndarray, objects: Objects, there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The object of each box (P), one of the indices `there`, and the largest overlap (P)."""
        p = self.param.multibox_loss_param
        usable = boxes.inside(found).all(axis=1) | (not p.ignore_cross_boundary_bbox)
        matches, overlaps = np.full(len(found), LEFT_OUT), np.zeros(len(found), np.float32)
        threshold = p.overlap_threshold if p.match_type == Param.PER_PREDICTION else None
        index, overlaps[usable] = boxes.match(found[usable], objects.boxes[there], threshold)
        matches[usable] = np.where(index < 0, NOT_MATCHED, there[index])
        return matches, overlaps

    def _differences(self, batch: Batch, pairs: Pairs) -> Array:
        """(M, 4): the predicted codes of the pairs minus those of their objects."""
        p = self.param.multibox_loss_param
        in_target = p.encode_variance_in_target
        prior, variance = batch.priors[pairs.priors], batch.variances[pairs.priors]
        at = batch.objects.boxes[pairs.objects]
        target = boxes.encode(at, prior, None if in_target else variance, p.code_type)
        predicted = batch.codes[self._of_codes(pairs)]
        difference = predicted - self._on_device(target)
        if p.bp_inside:
            at = prior if p.use_prior_for_matching else self._decoded(predicted, prior, variance)
            difference *= self._on_device(boxes.inside(at))
        return difference / self._on_device(variance) if in_target else difference

    def _mine(self, batch: Batch, matches: np.ndarray, overlaps: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Which priors (N, P) count in the loss, by their `ranks` (N, P): the matched ones and the hardest of the
        others, or the hardest of all."""
        p = self.param.multibox_loss_param
        chosen = np.zeros(matches.shape, bool)
        for image in np.unique(batch.objects.images):
            count, eligible = p.sample_size, np.ones(matches.shape[1], bool)
            if not self.mines_positives:
                count = int(np.float32((matches[image] >= 0).sum()) * np.float32(p.neg_pos_ratio))
                eligible = (matches[image] == NOT_MATCHED) & (overlaps[image] < np.float32(p.neg_overlap))
            candidates = np.flatnonzero(eligible)
            candidates = candidates[boxes.falling(ranks[image, candidates])]
            if p.HasField("nms_param") and p.nms_param.nms_threshold > 0:
                candidates = self._suppressed(batch, image, candidates)
            chosen[image, candidates[:count]] = True
        chosen &= matches != LEFT_OUT
        return chosen if self.mines_positives else chosen | (matches >= 0)

    def _suppressed(self, batch: Batch, image: int, candidates: np.ndarray) -> np.ndarray:
        """The indices of priors that are left of these, with the hardest first, by non-maximum suppression."""
        p = self.param.multibox_loss_param
        if p.nms_param.HasField("top_k"):
            candidates = candidates[: p.nms_param.top_k]
        at = batch.priors[candidates]
        if not p.use_prior_for_nms:
            codes = batch.codes[image, self._on_device(candidates), 0]
            at = self._decoded(codes, at, batch.variances[candidates])
        large = boxes.areas(at) >= SMALLEST_AREA
        return candidates[large][boxes.suppress(at[large], p.nms_param.nms_threshold)]

    def _decoded(self, codes: Array, priors: np.ndarray, variances: np.ndarray) -> np.ndarray:
        """The boxes (..., 4) of codes (..., 4) on the device."""
        p = self.param.multibox_loss_param
        scale = None if p.encode_variance_in_target else variances
        return boxes.decode(self.engine.to_numpy(codes), priors, scale, p.code_type)

    def _of_codes(self, pairs: Pairs) -> tuple[Array, ...]:
        """The indices of the codes of these pairs."""
        return tuple(map(self._on_device, pairs[:3]))

    # --- the two losses -----------------------------------------------------------------------------------------------

    def _box_losses(self, difference: Array) -> tuple[Array, Array]:
        """The loss (M) of each pair, and its derivative (M, 4) by the codes.

        As in SSD, the derivative lacks the factor 1 / variance with encode_variance_in_target.
        """
        if self.param.multibox_loss_param.loc_loss_type == Param.L2:
            return (difference * difference).sum(axis=1) / 2, difference
        return smooth_l1(self.xp, difference).sum(axis=1), smooth_l1_slope(self.xp, difference)

    def _score_losses(self, batch: Batch, pairs: Pairs, scores: Array) -> tuple[Array, Array]:
        """The loss (N * P) of each prior, and its derivative (N * P, classes) by the scores.

        A prior without object is background; with LOGISTIC and without mining it is none of the classes.
        """
        p, xp = self.param.multibox_loss_param, self.xp
        softmax = p.conf_loss_type == Param.SOFTMAX
        rows = pairs.images * len(batch.priors) + pairs.priors
        classes = batch.objects.labels[pairs.objects]
        if p.map_object_to_agnostic:
            classes = np.full(len(rows), p.background_label_id + 1)
        if softmax or self.mines:
            labels = np.full(len(scores), p.background_label_id)
            labels[rows] = classes
            rows, classes = np.arange(len(scores)), labels
        targets = xp.zeros(scores.shape, xp.float32)
        targets[self._on_device(rows), self._on_device(classes)] = 1
        if softmax:
            probability = xp.empty(scores.shape, xp.float32)
            self.engine.softmax_forward(scores, probability, 1)
            true = (probability * targets).sum(axis=1)
            return -xp.log(xp.maximum(true, xp.float32(SMALLEST))), probability - targets
        positive = scores >= 0
        losses = xp.log1p(xp.exp(scores - 2 * scores * positive)) - scores * (targets - positive)
        return losses.sum(axis=1), 0.5 * xp.tanh(0.5 * scores) + 0.5 - targets

    def _divisor(self, bottom: list[Blob], priors: int, matches: int) -> float:
        """At least 1, over all workers, so that the losses of the workers add up to that of the whole batch."""
        if self.mode == NONE:
            return 1.0
        if self.mode == VALID:
            return max(1.0, self.context.workers.sum(float(matches)))
        count = priors if self.mode == FULL else bottom[0].shape[0]
        return max(1.0, self.context.count_over_workers(count, bottom[0]))

    def _on_device(self, values: np.ndarray) -> Array:
        return self.engine.from_numpy(values)
