"""MultiBoxLoss: SSD's loss. It matches priors with objects, mines negatives, and adds losses of boxes and classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fcaffe import log
from fcaffe.data import boxes
from fcaffe.engines.elementwise import FLT_MIN
from fcaffe.forks import ssd
from fcaffe.forks.losses import smooth_l1, smooth_l1_slope
from fcaffe.forks.yolo import sigmoid
from fcaffe.layers.loss import BATCH_SIZE, FULL, NONE, VALID, LossLayer, divisor, normalization
from fcaffe.net import Blob, register
from fcaffe.net.placements import LOCAL, REPLICATE, Placements, Shard, common, first_axis, total_of
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks

Param = pb.MultiBoxLossParameter
NOT_MATCHED, LEFT_OUT = -1, -2  # instead of an object's index
SMALLEST_AREA = 1e-5  # of a box that suppression keeps

Pairs = tuple[np.ndarray, ...]  # indices (M) of images, priors and kinds of codes; of priors that stand for an object


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
    traits = replace(LossLayer.traits, needs_host=True, bottoms=4, labels=(3,), constants=(2,))
    learning = 2

    def rule(self, bottom: list[Blob]) -> Placements:
        placement = common(self, bottom[:2], first_axis)
        boxes = LOCAL if isinstance(placement, Shard) else placement
        return [placement, placement, REPLICATE, boxes], [total_of(placement)]

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        p = self.param.multibox_loss_param
        self.mines = p.mining_type != Param.NONE
        self.mines_positives = p.mining_type == Param.HARD_EXAMPLE
        self.mode = normalization(self.param.loss_param, VALID)
        if p.background_label_id + p.map_object_to_agnostic >= p.num_classes:
            raise self.error("num_classes must count the background, background_label_id, and a class behind it")
        if p.HasField("do_neg_mining") and p.do_neg_mining != self.mines:
            raise self.error("do_neg_mining contradicts mining_type; remove it")
        if self.mines and not p.share_location:
            raise self.error("mines with share_location only; set mining_type: NONE")
        if self.mines_positives and p.sample_size < 1:
            raise self.error(f"sample_size must be positive, not {p.sample_size}")
        if self.mode not in (FULL, VALID, BATCH_SIZE, NONE):
            raise self.error("loss_param.normalization is one of VALID, FULL, BATCH_SIZE and NONE")
        if p.HasField("ignore_difficult_gt"):
            log.warning(f'layer "{self.name}": ignore_difficult_gt, of {forks.YOLO}, has no effect')
        if self.mode == VALID:
            self.workers.run_shards_in_step()
        self.weights = [p.loc_weight, 1.0]
        for index, down in enumerate(self.param.propagate_down[:2]):
            self.weights[index] *= down

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        ssd.check_predictions(self, bottom, self.param.multibox_loss_param)
        ssd.check_ground_truth(self, bottom[3])
        super().reshape(bottom, top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        found = ssd.read_predictions(self, bottom, self.param.multibox_loss_param)
        objects = self._objects(bottom)
        matches, overlaps = self._match(found, objects)
        pairs = np.nonzero(matches >= 0)
        chosen, cells = objects.of(matches[pairs]), pairs[:2]
        box_losses, box_slopes = self._box_losses(found, pairs, chosen.boxes)
        score_losses, score_slopes = self._score_losses(found.scores, cells, chosen.labels)
        counted = np.ones(overlaps.shape, bool)
        if self.mines:
            ranks = score_losses.copy()
            if self.mines_positives:
                ranks[cells] += box_losses
            counted = self._mine(found, objects, matches[:, :, 0], overlaps, ranks)
        kept = counted[cells]
        if self.mode == VALID:
            self.samples = max(1.0, self.workers.sum(float(kept.sum())))
        else:
            self.samples = divisor(self, bottom[0], 0, overlaps.shape[0], overlaps.size)
        losses = box_losses[kept].sum(), score_losses[counted].sum()
        top[0].data[...] = sum(w * loss for w, loss in zip(self.weights, losses, strict=True) if w) / self.samples
        gradients = np.zeros_like(found.codes), np.zeros_like(found.scores)
        gradients[0][tuple(index[kept] for index in pairs)] = self.weights[0] * box_slopes[kept]
        gradients[1][counted] = self.weights[1] * score_slopes[counted]
        self.store(*gradients)

    # --- match, encode, mine ------------------------------------------------------------------------------------------

    def _objects(self, bottom: list[Blob]) -> ssd.Objects:
        p, images = self.param.multibox_loss_param, bottom[0].shape[0]
        classes = None if p.map_object_to_agnostic and p.share_location else p.num_classes
        objects = ssd.read_ground_truth(self, bottom[3], classes, p.background_label_id)
        outside = (objects.images < 0) | (objects.images >= images)
        if outside.any():
            raise self.error(f"an object is in image {objects.images[outside.argmax()]} of a batch of {images}")
        return objects if p.use_difficult_gt else objects.of(~objects.difficult)

    def _match(self, found: ssd.Predictions, objects: ssd.Objects) -> tuple[np.ndarray, np.ndarray]:
        """The index of the object of each prior (N, P, kinds), or NOT_MATCHED or LEFT_OUT, and the largest overlap of
        each prior (N, P) with an object. With use_prior_for_matching: false predicted boxes stand for the priors."""
        p = self.param.multibox_loss_param
        matches = np.full(found.codes.shape[:3], NOT_MATCHED)
        overlaps = np.zeros(found.codes.shape[:2], np.float32)
        predicted = None
        if not p.use_prior_for_matching:
            predicted = self._decoded(found.codes, found.priors[:, None], found.variances[:, None])
        for image in np.unique(objects.images):
            there = np.flatnonzero(objects.images == image)
            if predicted is None:
                of_priors, overlaps[image] = self._match_boxes(found.priors, objects, there)
                kinds = 0 if p.share_location else objects.labels[of_priors]
                matches[image, np.arange(len(of_priors)), kinds] = of_priors
            elif p.share_location:
                matches[image, :, 0], overlaps[image] = self._match_boxes(predicted[image, :, 0], objects, there)
            else:
                for label in np.unique(objects.labels[there]):
                    of_label = there[objects.labels[there] == label]
                    matches[image, :, label], _ = self._match_boxes(predicted[image, :, label], objects, of_label)
        return matches, overlaps

    def _match_boxes(self, found: np.ndarray, objects: ssd.Objects, there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The object of each box (P), one of the indices `there`, and the largest overlap (P)."""
        p = self.param.multibox_loss_param
        usable = boxes.inside(found).all(axis=1) | (not p.ignore_cross_boundary_bbox)
        matches, overlaps = np.full(len(found), LEFT_OUT), np.zeros(len(found), np.float32)
        threshold = p.overlap_threshold if p.match_type == Param.PER_PREDICTION else None
        index, overlaps[usable] = boxes.match(found[usable], objects.boxes[there], threshold)
        matches[usable] = np.where(index < 0, NOT_MATCHED, there[index])
        return matches, overlaps

    def _mine(
        self, found: ssd.Predictions, objects: ssd.Objects, matches: np.ndarray, overlaps: np.ndarray, ranks: np.ndarray
    ) -> np.ndarray:
        """Which priors (N, P) count in the loss, by their `ranks` (N, P): the matched ones and the hardest of the
        others, or the hardest of all."""
        p = self.param.multibox_loss_param
        chosen = np.zeros(matches.shape, bool)
        for image in np.unique(objects.images):
            count, eligible = p.sample_size, np.ones(matches.shape[1], bool)
            if not self.mines_positives:
                count = int(np.float32((matches[image] >= 0).sum()) * np.float32(p.neg_pos_ratio))
                eligible = (matches[image] == NOT_MATCHED) & (overlaps[image] < np.float32(p.neg_overlap))
            candidates = np.flatnonzero(eligible)
            candidates = candidates[boxes.falling(ranks[image, candidates])]
            if p.HasField("nms_param") and p.nms_param.nms_threshold > 0:
                candidates = self._suppressed(found, image, candidates)
            chosen[image, candidates[:count]] = True
        chosen &= matches != LEFT_OUT
        return chosen if self.mines_positives else chosen | (matches >= 0)

    def _suppressed(self, found: ssd.Predictions, image: int, candidates: np.ndarray) -> np.ndarray:
        """The indices of priors that are left of these, with the hardest first, by non-maximum suppression."""
        p = self.param.multibox_loss_param
        if p.nms_param.HasField("top_k"):
            candidates = candidates[: p.nms_param.top_k]
        at = found.priors[candidates]
        if not p.use_prior_for_nms:
            at = self._decoded(found.codes[image, candidates, 0], at, found.variances[candidates])
        large = boxes.areas(at) >= SMALLEST_AREA
        return candidates[large][boxes.suppress(at[large], p.nms_param.nms_threshold)]

    def _decoded(self, codes: np.ndarray, priors: np.ndarray, variances: np.ndarray) -> np.ndarray:
        p = self.param.multibox_loss_param
        return boxes.decode(codes, priors, None if p.encode_variance_in_target else variances, p.code_type)

    # --- the two losses -----------------------------------------------------------------------------------------------

    def _box_losses(self, found: ssd.Predictions, pairs: Pairs, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loss (M) of each pair with the boxes (M, 4), and its derivative (M, 4) by the codes.

        As in SSD, the derivative lacks the factor 1 / variance with encode_variance_in_target.
        """
        p, predicted = self.param.multibox_loss_param, found.codes[pairs]
        in_target = p.encode_variance_in_target
        prior, variance = found.priors[pairs[1]], found.variances[pairs[1]]
        difference = predicted - boxes.encode(truth, prior, None if in_target else variance, p.code_type)
        if p.bp_inside:
            difference *= boxes.inside(prior if p.use_prior_for_matching else self._decoded(predicted, prior, variance))
        if in_target:
            difference = difference / variance
        if p.loc_loss_type == Param.L2:
            return (difference * difference).sum(axis=1) / 2, difference
        return smooth_l1(np, difference).sum(axis=1), smooth_l1_slope(np, difference)

    def _score_losses(self, scores: np.ndarray, cells: Pairs, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loss (N, P) of each prior, and its derivative (N, P, classes) by the scores (N, P, classes).

        The priors in `cells` (images and indices) have an object of these `classes`. Any other is background, or, with
        LOGISTIC and without mining, none of the classes.
        """
        p = self.param.multibox_loss_param
        softmax, targets = p.conf_loss_type == Param.SOFTMAX, np.zeros_like(scores)
        if p.map_object_to_agnostic:
            classes = np.full(len(classes), p.background_label_id + 1)
        if softmax or self.mines:
            labels = np.full(scores.shape[:2], p.background_label_id)
            labels[cells] = classes
            np.put_along_axis(targets, labels[:, :, None], 1, axis=2)
        else:
            targets[cells[0], cells[1], classes] = 1
        if softmax:
            probability = np.exp(scores - scores.max(axis=2, keepdims=True))
            probability /= probability.sum(axis=2, keepdims=True)
            true = np.maximum((probability * targets).sum(axis=2), np.float32(FLT_MIN))
            return -np.log(true), probability - targets
        positive = scores >= 0
        losses = np.log1p(np.exp(scores - 2 * scores * positive)) - scores * (targets - positive)
        return losses.sum(axis=2), sigmoid(scores) - targets
