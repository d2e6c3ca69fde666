"""YOLO, version 3 (Redmon and Farhadi 2018): Yolov3 and Yolov3DetectionOutput."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from fcaffe.data import boxes
from fcaffe.forks.ssd import DETECTION_ROW, DetectionRows
from fcaffe.forks.yolo import (
    CIOU,
    CODES,
    DIOU,
    GIOU,
    MSE,
    OBJECTNESS,
    SCORES,
    SHAPE,
    GridLoss,
    check_cells,
    corners,
    decoded,
    overlap,
    overlap_gradient,
    read_anchors,
    read_cells,
    sigmoid,
)
from fcaffe.net import Blob, register
from fcaffe.proto import forks


@register("Yolov3")
class Yolov3(GridLoss):
    """top = the sum of the squares of the gradient / N, at one of YOLOv3's scales.

    Bottoms: predictions for the anchors in `mask`, and ground truth (N, boxes * 5). `biases` has the sizes of all
    anchors in pixels, of which a cell has `anchors_scale`. A box trains the anchor most like it, if that is in `mask`,
    and those of the mask that overlap with it by more than `iou_thresh`. With another `iou_loss` than MSE the gradient
    of a box is that of the overlap, and the mean of 1 - overlap replaces its part of the loss. As in the fork, the
    gradient leaves out the derivative of the sigmoid unless `use_logic_gradient` is set, `noobject_scale` is not used,
    and the position of the best anchor in `mask` is compared with positions among all anchors, so that it may be
    trained twice.
    """

    fork = forks.YOLO

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        p = self.p = self.param.yolov3_param
        self.anchors, self.mask = read_anchors(self, p.biases), np.array(p.mask, np.int64)
        if len(self.mask) != p.num or (self.mask >= len(self.anchors)).any() or p.anchors_scale < 1:
            raise self.error(f"needs anchors_scale and a mask of num = {p.num} of the {len(self.anchors)} anchors")
        if p.iou_loss != MSE:
            self.workers.run_shards_in_step()

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.p
        self.samples = self.count_samples(bottom)
        cells = read_cells(self, bottom[0], p.num, p.num_class)
        activated = np.r_[0, 1, OBJECTNESS : cells.shape[-1]]
        cells[..., activated] = sigmoid(cells[..., activated])
        height, width = cells.shape[1:3]
        anchors = self.anchors / (np.array([width, height], np.float32) * np.float32(p.anchors_scale))
        predicted, gradient = decoded(cells, anchors[self.mask]), np.zeros_like(cells)
        overlaps = self.best_overlaps(predicted, bottom, partial(overlap, kind=p.iou_loss))
        gradient[..., OBJECTNESS] = np.where(overlaps > np.float32(p.thresh), 0, cells[..., OBJECTNESS])

        images, labels, truth = self.boxes_of(bottom, p.num_class)
        box, anchor = self._matches(truth, anchors)
        rows, columns, within = self.cells_of(truth, height, width)
        where = (images[box], rows[box], columns[box], anchor)
        truth, labels = truth[box], labels[box]
        missing = 0.0  # the sum of 1 - overlap
        if p.iou_loss == MSE:
            codes = np.concatenate([within[box], np.log(truth[:, 2:] / anchors[self.mask[anchor]])], axis=1)
            scale = np.float32(p.coord_scale) * (2 - truth[:, 2:3] * truth[:, 3:])
            gradient[..., CODES][where] = scale * (cells[where][:, CODES] - codes)
        else:
            slope = overlap_gradient(predicted[where], truth, p.iou_loss)
            slope[:, 2:] *= np.exp(cells[where][:, 2:4])
            slope = np.nan_to_num(slope * p.iou_normalizer, posinf=0, neginf=0).clip(-p.max_delta, p.max_delta)
            if p.accumulate:
                np.subtract.at(gradient[..., CODES], where, slope)
            else:
                gradient[..., CODES][where] = -slope
            kind = p.iou_loss if p.iou_loss in (GIOU, CIOU) else DIOU
            missing = float((1 - overlap(predicted[where], truth, kind)).sum())
        object_scale = p.object_scale if p.use_logic_gradient else 1
        gradient[..., OBJECTNESS][where] = (cells[where][:, OBJECTNESS] - 1) * object_scale
        self._learn_classes(cells[..., SCORES], gradient[..., SCORES], where, labels)

        learnt = gradient if p.iou_loss == MSE else gradient[..., OBJECTNESS:]
        loss = float((learnt.astype(np.float64) ** 2).sum())
        if p.iou_loss != MSE:
            loss += p.iou_normalizer * missing / max(1.0, self.workers.sum(float(len(box))))
        top[0].data[...] = loss / self.samples
        if p.use_logic_gradient:
            gradient[..., activated] *= cells[..., activated] * (1 - cells[..., activated])
        self.store_cells(gradient)

    def _matches(self, truth: np.ndarray, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of a box and the anchor, as its position in `mask`, that it trains, in the order of training."""
        p, count = self.p, len(anchors)
        shapes = np.concatenate([np.zeros_like(anchors), anchors], axis=1)
        overlaps = overlap(shapes, (truth * SHAPE)[:, None], p.iou_loss)
        position = np.full(count + 1, -1)  # of each anchor in the mask; at the end, of none
        position[self.mask[::-1]] = np.arange(len(self.mask))[::-1]
        best = np.where(overlaps.max(axis=1, initial=0) > 0, overlaps.argmax(axis=1), count)
        other = np.where(position[best] >= 0, position[best], best)[:, None] != np.arange(count)
        other &= (position[:-1] >= 0) & (overlaps > np.float32(p.iou_thresh)) & (p.iou_thresh < 1)
        trains = np.concatenate([position[best, None] >= 0, other], axis=1)
        box, choice = np.nonzero(trains)
        return box, np.where(choice == 0, position[best[box]], position[choice - 1])

    def _learn_classes(
        self, scores: np.ndarray, gradient: np.ndarray, where: tuple[np.ndarray, ...], labels: np.ndarray
    ) -> None:
        """Write the gradient of the scores. Where several boxes train one prediction, all of their classes count."""
        p, smooth = self.p, np.float32(self.p.label_smooth_eps)
        _, first = np.unique(np.ravel_multi_index(where, scores.shape[:-1]), return_index=True)
        begun = tuple(index[first] for index in where)
        targets = np.eye(p.num_class, dtype=np.float32)[labels[first]]
        if p.use_focal_loss:
            true = (scores[begun] * targets).sum(axis=1, keepdims=True) + np.float32(1e-15)
            focus = -(1 - true) * (2 * true * np.log(true) + true - 1) / 2
            gradient[begun] = p.class_scale * (scores[begun] - targets) * focus
        else:
            gradient[begun] = p.class_scale * (scores[begun] - targets * (1 - smooth) - smooth / 2)
        later = np.delete(np.arange(len(labels)), first)
        again = (*(index[later] for index in where), labels[later])
        gradient[again] = p.class_scale * (scores[again] - (1 - smooth / 2))


@register("Yolov3DetectionOutput")
class Yolov3DetectionOutput(DetectionRows):
    """top (1, 1, D, 7): a row (image, label, score, xmin, ymin, xmax, ymax) for each box found, best first.

    Bottoms: maps of predictions, one for each of the `mask_group_num` groups of `mask` and each `anchors_scale`. The
    score is objectness times class score; those above `confidence_threshold` count. Labels are class + 1. As in the
    fork, a box suppresses those of other classes and images too if they overlap by at least `nms_threshold`, and the
    image is always 0. If nothing is found there is a row for each image, with -1 behind its number.
    """

    fork = forks.YOLO
    traits = replace(DetectionRows.traits, bottoms=(1, None))

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.p = self.param.yolov3_detection_output_param
        self.anchors = read_anchors(self, p.biases)
        groups = p.mask_group_num
        if p.gaussian_box:
            raise self.error("gaussian_box: true, of GaussianYolov3 nets, is not supported; a Python layer can do it")
        if len(bottom) != groups or len(p.anchors_scale) != groups or len(p.mask) != groups * p.num_box:
            raise self.error(
                f"needs mask_group_num = {groups} bottoms, as many anchors_scale and {groups} * num_box entries of "
                f"mask, not {len(bottom)}, {len(p.anchors_scale)} and {len(p.mask)}"
            )
        if max(p.mask) >= len(self.anchors) or min(p.anchors_scale) < 1:
            raise self.error(f"mask must name some of the {len(self.anchors)} anchors, and anchors_scale be positive")
        top[0].reshape(1, 1, 1, DETECTION_ROW)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if any(blob.shape[:1] != bottom[0].shape[:1] for blob in bottom):
            raise self.error(f"its bottoms must agree in the first dimension: {self.named_shapes(bottom)}")
        for blob in bottom:
            check_cells(self, blob, self.p.num_box, self.p.num_classes)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, found = self.p, [np.empty((0, DETECTION_ROW - 1), np.float32)]
        masks = np.array(p.mask).reshape(len(bottom), p.num_box)
        for blob, scale, mask in zip(bottom, p.anchors_scale, masks, strict=True):
            cells = read_cells(self, blob, p.num_box, p.num_classes)
            size = np.array(blob.shape[:1:-1], np.float32) * np.float32(scale)
            cells[..., [0, 1, OBJECTNESS]] = sigmoid(cells[..., [0, 1, OBJECTNESS]])
            scores = sigmoid(cells[..., SCORES]) * cells[..., OBJECTNESS, None]
            where = np.nonzero(scores > np.float32(p.confidence_threshold))
            ends = corners(decoded(cells, self.anchors[mask] / size)[where[:-1]])
            found.append(np.column_stack([where[-1] + 1, scores[where], ends]).astype(np.float32))
        rows = np.concatenate(found)
        rows = rows[boxes.falling(rows[:, 1])]
        threshold = float(np.nextafter(np.float32(p.nms_threshold), np.float32(-1)))
        rows = np.pad(rows[boxes.suppress(rows[:, 2:], threshold)], ((0, 0), (1, 0)))
        self.write_detections(rows, bottom[0].shape[0], top)
