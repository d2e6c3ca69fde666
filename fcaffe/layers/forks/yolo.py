"""YOLO, versions 2 and 3 (Redmon and Farhadi): RegionLoss, Yolov3, Yolov3DetectionOutput.

At each cell of a map, a net predicts for each of some anchors the values x, y, w, h, objectness and one score for each
class: (N, anchors * (5 + classes), H, W). Ground truth has a row (class, x, y, w, h) for each box, as fractions of the
image. The host matches boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe.data import boxes
from fcaffe.errors import DataError
from fcaffe.input_files import read_input, reading
from fcaffe.layers.data import reading_errors
from fcaffe.layers.forks.centre_boxes import CIOU, DIOU, GIOU, MSE, clipped, corners, overlap, overlap_gradient
from fcaffe.layers.forks.host_loss import HostLoss
from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.net.state import Held, State
from fcaffe.proto import forks

TRUTH = 5  # class, x, y, w, h
WHOLE_IMAGE = 100000  # x and y above it: a label of the image, without a box
WARM_UP = 12800  # images for which RegionLoss pulls all boxes to their anchors


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def read_anchors(layer: Layer, biases: Any) -> np.ndarray:
    """(anchors, 2): width and height of each."""
    anchors = np.array(biases, np.float32)
    if not anchors.size or anchors.size % 2 or not (anchors > 0).all():
        raise layer.error("biases must be the width and height, both positive, of each anchor")
    return anchors.reshape(-1, 2)


def check_cells(layer: Layer, blob: Blob, anchors: int, classes: int) -> None:
    """NetError unless the blob has predictions of so many anchors and classes."""
    channels = anchors * (5 + classes)
    if len(blob.shape) != 4 or blob.shape[1] != channels or not classes:
        raise layer.error(
            f"needs maps with {anchors} anchors * (5 + {classes} classes) = {channels} channels, not {blob.shape}; "
            "correct the number of anchors or classes"
        )


def read_cells(layer: Layer, blob: Blob, anchors: int, classes: int) -> np.ndarray:
    """(N, H, W, anchors, 5 + classes): the predictions, a copy in host memory."""
    images, _, height, width = blob.shape
    cells = np.array(layer.engine.to_numpy(blob.data)).reshape(images, anchors, 5 + classes, height, width)
    return np.ascontiguousarray(cells.transpose(0, 3, 4, 1, 2))


def decoded(cells: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """(N, H, W, A, 4): boxes of activated cells; the anchors (A, 2) are fractions of the image."""
    height, width = cells.shape[1:3]
    columns, rows = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    origins = np.stack([columns, rows], axis=-1)[:, :, None]
    centres = (origins + cells[..., :2]) / np.array([width, height], np.float32)
    return np.concatenate([centres, np.exp(cells[..., 2:4]) * anchors], axis=-1)


def at(cells: Sequence[np.ndarray], values: Any) -> tuple[Any, ...]:
    """The index of values, such as slice(4) for the box, in these cells."""
    return (*cells, values)


class GridLoss(HostLoss):
    """Base of losses of predictions at the cells of a map."""

    p: Any  # the layer's own parameters
    anchors: np.ndarray  # width and height of each anchor

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        check_cells(self, bottom[0], self.p.num, self.p.num_class)
        if bottom[1].count % (TRUTH * max(1, bottom[1].shape[0])):
            raise self.error(f"needs rows of class, x, y, w and h for each image, not {self.named_shapes(bottom[1:])}")

    def store_cells(self, gradient: np.ndarray) -> None:
        """`store` the gradient (N, H, W, A, 5 + classes)."""
        self.store(np.ascontiguousarray(gradient.transpose(0, 3, 4, 1, 2)))

    def rows(self, bottom: list[Blob], column: int) -> tuple[np.ndarray, np.ndarray]:
        """Ground truth: the image of each row, and the rows (T, 5), of each image those before a 0 in this column."""
        truth = self.engine.to_numpy(bottom[1].data)
        truth = truth.reshape(len(truth), truth.size // max(1, len(truth)) // TRUTH, TRUTH)
        images, rows = np.nonzero(np.logical_and.accumulate(truth[..., column] != 0, axis=1))
        return images, truth[images, rows]

    def boxes_of(self, bottom: list[Blob], classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images (T,), classes (T,) and boxes (T, 4) of the ground truth that has an area. LayerError if it is none."""
        images, rows = self.rows(bottom, 3)
        boxed = ~(rows[:, 1:3] > WHOLE_IMAGE).all(axis=1) & (rows[:, 4] != 0)
        images, rows = images[boxed], rows[boxed]
        inside = ((rows[:, 1:3] >= 0) & (rows[:, 1:3] < 1)).all(axis=1) & (rows[:, 3:] > 0).all(axis=1)
        wrong = ~inside | ~np.isfinite(rows).all(axis=1) | (rows[:, 0] <= -1) | (rows[:, 0] >= classes)
        if wrong.any():
            index = int(wrong.argmax())
            raise self.error(
                f"image {images[index]} has a row of ground truth (class, x, y, w, h) = "
                f"({', '.join(f'{value:g}' for value in rows[index])}); the class must be below {classes}, the centre "
                "inside the image, as fractions of its size, and the sides positive"
            )
        return images, rows[:, 0].astype(np.int64), rows[:, 1:]

    def best_overlaps(self, predicted: np.ndarray, bottom: list[Blob], kind: int = MSE) -> np.ndarray:
        """(N, H, W, A): the largest overlap, at least 0, of each prediction with the ground truth of its image."""
        best = np.zeros(predicted.shape[:-1], np.float32)
        images, rows = self.rows(bottom, 1)
        for image in np.unique(images):
            truth = self.comparable(rows[images == image, 1:])
            best[image] = overlap(predicted[image][..., None, :], truth, kind).max(axis=-1)
        return np.maximum(best, 0)

    def comparable(self, found: np.ndarray) -> np.ndarray:
        """The boxes whose overlaps count."""
        return found

    def cells_of(self, truth: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row and column of the cell with the centre of each box, and the centre (T, 2) within the cell."""
        scaled = truth[:, :2] * np.array([width, height], np.float32)
        cells = scaled.astype(np.int64)
        return cells[:, 1], cells[:, 0], (scaled - cells).astype(np.float32)


@register("RegionLoss")
class RegionLoss(GridLoss):
    """top = the sum of the squares of the gradient that it sends down, before its division by N. YOLOv2.

    Bottoms: predictions, with `side` rows and columns, and ground truth (N, boxes * 5). Objectness is pulled to 0 where
    no box overlaps by more than `thresh`. At the cell of each box's centre the anchor most like it learns box and
    class, and its objectness is pulled to 1. In the first 12800 / N passes all boxes are pulled to their anchors. With
    `softmax_tree`, a file with a line of name and parent for each class, there is a softmax for each group of siblings,
    and rows with x and y above 100000 label the whole image. `class_map` is a file with the class for each label.

    The fork counts the passes of all layers of a process; here each layer counts its own. Boxes without area are left
    out.
    """

    fork = forks.YOLO_V2
    traits = replace(GridLoss.traits, held=Held.ALIKE)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.refuse_shards("counts its passes")
        p = self.p = self.param.region_loss_param
        self.anchors = read_anchors(self, p.biases)
        if len(self.anchors) != p.num or p.coords != 4 or p.side < 1:
            raise self.error(f"needs coords: 4, a side, and {2 * p.num} biases for num: {p.num}")
        self.parents = np.full(p.num_class, -1)
        if p.softmax_tree:
            self.parents = self._read_numbers(p.softmax_tree, 1)
            if len(self.parents) != p.num_class or (self.parents >= np.arange(p.num_class)).any():
                raise self.error(f"softmax_tree needs {p.num_class} lines, each with a name and the line of its parent")
        self.groups = np.cumsum(np.diff(self.parents, prepend=self.parents[:1]) != 0)  # of siblings
        self.class_map = self._read_numbers(p.class_map, 0) if p.class_map else np.arange(p.num_class)
        if not ((self.class_map >= 0) & (self.class_map < p.num_class)).all():
            raise self.error(f"class_map may have the classes 0 to {p.num_class - 1} only")
        self.passes = 0

    def _read_numbers(self, path: str, column: int) -> np.ndarray:
        """The whole number in this column of each line of a file."""
        with reading_errors(self), reading(path, DataError, "list of classes"):
            lines = read_input(path).decode("utf-8", "surrogateescape").splitlines()
            try:
                return np.array([int(line.split()[column]) for line in lines if line.strip()], np.int64)
            except (ValueError, IndexError):
                raise DataError(f"column {column + 1} of each line of {path} must be a whole number") from None

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].shape[2:] != (self.p.side, self.p.side):
            raise self.error(f"has side: {self.p.side} for {self.named_shapes(bottom[:1])}; correct one of them")

    def state(self) -> State:
        return {"passes": np.array(self.passes, np.int64)}

    def restore_state(self, state: State) -> None:
        if "passes" not in state or state["passes"].shape:
            raise self.error("the snapshot does not have its number of passes")
        self.passes = int(state["passes"])

    def forward_again(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.passes -= 1
        self.forward(bottom, top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, side = self.p, self.p.side
        self.samples = self.count_samples(bottom)
        cells = self._activated(read_cells(self, bottom[0], p.num, p.num_class))
        anchors = self.anchors / np.float32(side)
        predicted, gradient, objectness = decoded(cells, anchors), np.zeros_like(cells), cells[..., 4]
        slope = objectness * (1 - objectness)
        background = p.noobject_scale * objectness * slope
        overlaps = self.best_overlaps(clipped(predicted), bottom)
        gradient[..., 4] = np.where(overlaps > np.float32(p.thresh), 0, background)
        if self.passes < WARM_UP // int(self.samples):
            gradient[..., :4] = self._box_gradient(cells[..., :4], np.array([0.5, 0.5, 0, 0], np.float32), 0.01)
        self.passes += 1
        images, labels, truth = self.boxes_of(bottom, len(self.class_map))
        if p.softmax_tree:
            labelled = self._learn_labels_of_images(bottom, cells, background, gradient)
            boxed = ~np.isin(images, labelled)
            images, labels, truth = images[boxed], labels[boxed], truth[boxed]
        rows, columns, within = self.cells_of(truth, side, side)
        candidates = np.zeros((len(truth), p.num, 4), np.float32)  # about the origin, in size alone
        candidates[..., 2:] = anchors if p.bias_match else predicted[images, rows, columns, :, 2:]
        shifted = truth * np.array([0, 0, 1, 1], np.float32)
        best = overlap(clipped(candidates), clipped(shifted)[:, None]).argmax(axis=1)
        where = (images, rows, columns, best)
        codes = np.concatenate([within, np.log(truth[:, 2:] / anchors[best])], axis=1)
        gradient[at(where, slice(4))] = self._box_gradient(cells[where][:, :4], codes, p.coord_scale)
        gradient[at(where, 4)] = p.object_scale * (objectness[where] - 1) * slope[where]
        self._learn_classes(cells, gradient, where, self.class_map[labels])
        squares = np.cumsum(gradient.reshape(-1) ** 2)  # one after the other in float32, as in the fork
        top[0].data[...] = squares[-1] if squares.size else 0
        self.store_cells(gradient)

    def comparable(self, found: np.ndarray) -> np.ndarray:
        return clipped(found)

    def _activated(self, cells: np.ndarray) -> np.ndarray:
        """Sigmoid of x, y and objectness; softmax of each group of classes."""
        cells[..., [0, 1, 4]] = sigmoid(cells[..., [0, 1, 4]])
        starts = np.flatnonzero(np.diff(self.groups, prepend=-1))
        sizes = np.diff(starts, append=len(self.groups))
        scores = cells[..., 5:]
        scores -= np.repeat(np.maximum.reduceat(scores, starts, axis=-1), sizes, axis=-1)
        np.exp(scores, out=scores)
        scores /= np.repeat(np.add.reduceat(scores, starts, axis=-1), sizes, axis=-1)
        return cells

    def _box_gradient(self, values: np.ndarray, codes: np.ndarray, scale: float) -> np.ndarray:
        gradient = np.float32(scale) * (values - codes)
        gradient[..., :2] *= values[..., :2] * (1 - values[..., :2])
        return gradient

    def _learn_classes(
        self, cells: np.ndarray, gradient: np.ndarray, where: tuple[np.ndarray, ...], labels: np.ndarray
    ) -> None:
        """Write the gradient of the scores in these cells: of a class, its ancestors and the siblings of them."""
        targets = np.zeros((len(labels), self.p.num_class), np.float32)
        learns = np.zeros(targets.shape, bool)
        on_path = np.arange(len(labels))
        while len(on_path):
            targets[on_path, labels] = 1
            learns[on_path] |= self.groups == self.groups[labels][:, None]
            labels = self.parents[labels]
            on_path, labels = on_path[labels >= 0], labels[labels >= 0]
        box, scores = np.nonzero(learns)
        cell = (*(index[box] for index in where), 5 + scores)
        gradient[cell] = self.p.class_scale * (cells[cell] - targets[box, scores])

    def _learn_labels_of_images(
        self, bottom: list[Blob], cells: np.ndarray, background: np.ndarray, gradient: np.ndarray
    ) -> np.ndarray:
        """Images whose label is that of no box: the likeliest cell learns the class. Returns these images."""
        images, rows = self.rows(bottom, 1)
        whole = (rows[:, 1:3] > WHOLE_IMAGE).all(axis=1)
        found, first = np.unique(images[whole], return_index=True)
        for image, label in zip(found, rows[whole][first, 0].astype(np.int64), strict=True):
            if not 0 <= label < self.p.num_class:
                raise self.error(
                    f"image {image} has the label {label}, which is none of the {self.p.num_class} classes"
                )
            probability, ancestor = cells[image, ..., 4], label
            while ancestor >= 0:
                probability = probability * cells[image, ..., 5 + ancestor]
                ancestor = self.parents[ancestor]
            gradient[image] = 0
            gradient[image, ..., 4] = background[image]
            best = np.unravel_index(probability.argmax(), probability.shape)
            where = (np.array([image]), *(np.array([index]) for index in best))
            objectness = cells[where][0, 4]
            lack = min(objectness - np.float32(0.3), 0)
            gradient[at(where, 4)] = self.p.object_scale * lack * objectness * (1 - objectness)
            self._learn_classes(cells, gradient, where, np.array([label]))
        return found


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
            self.refuse_shards("divides its loss by the number of boxes in the whole batch")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.p
        self.samples = self.count_samples(bottom)
        cells = read_cells(self, bottom[0], p.num, p.num_class)
        activated = np.r_[0, 1, 4 : cells.shape[-1]]
        cells[..., activated] = sigmoid(cells[..., activated])
        height, width = cells.shape[1:3]
        anchors = self.anchors / (np.array([width, height], np.float32) * np.float32(p.anchors_scale))
        predicted, gradient = decoded(cells, anchors[self.mask]), np.zeros_like(cells)
        overlaps = self.best_overlaps(predicted, bottom, p.iou_loss)
        gradient[..., 4] = np.where(overlaps > np.float32(p.thresh), 0, cells[..., 4])

        images, labels, truth = self.boxes_of(bottom, p.num_class)
        box, anchor = self._matches(truth, anchors)
        rows, columns, within = self.cells_of(truth, height, width)
        where = (images[box], rows[box], columns[box], anchor)
        truth, labels = truth[box], labels[box]
        missing = 0.0  # the sum of 1 - overlap
        if p.iou_loss == MSE:
            codes = np.concatenate([within[box], np.log(truth[:, 2:] / anchors[self.mask[anchor]])], axis=1)
            scale = np.float32(p.coord_scale) * (2 - truth[:, 2:3] * truth[:, 3:])
            gradient[at(where, slice(4))] = scale * (cells[where][:, :4] - codes)
        else:
            slope = overlap_gradient(predicted[where], truth, p.iou_loss)
            slope[:, 2:] *= np.exp(cells[where][:, 2:4])
            slope = np.nan_to_num(slope * p.iou_normalizer, posinf=0, neginf=0).clip(-p.max_delta, p.max_delta)
            if p.accumulate:
                np.subtract.at(gradient[..., :4], where, slope)
            else:
                gradient[at(where, slice(4))] = -slope
            kind = p.iou_loss if p.iou_loss in (GIOU, CIOU) else DIOU
            missing = float((1 - overlap(predicted[where], truth, kind)).sum())
        gradient[at(where, 4)] = (cells[where][:, 4] - 1) * (p.object_scale if p.use_logic_gradient else 1)
        self._learn_classes(cells, gradient, where, labels)

        learnt = gradient if p.iou_loss == MSE else gradient[..., 4:]
        loss = float((learnt.astype(np.float64) ** 2).sum())
        if p.iou_loss != MSE:
            loss += p.iou_normalizer * missing / max(1.0, self.context.workers.sum(float(len(box))))
        top[0].data[...] = loss / self.samples
        if p.use_logic_gradient:
            gradient[..., activated] *= cells[..., activated] * (1 - cells[..., activated])
        self.store_cells(gradient)

    def _matches(self, truth: np.ndarray, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of a box and the anchor, as its position in `mask`, that it trains, in the order of training."""
        p, count = self.p, len(anchors)
        shapes = np.concatenate([np.zeros_like(anchors), anchors], axis=1)
        overlaps = overlap(shapes, (truth * np.array([0, 0, 1, 1], np.float32))[:, None], p.iou_loss)
        position = np.full(count + 1, -1)  # of each anchor in the mask; at the end, of none
        position[self.mask[::-1]] = np.arange(len(self.mask))[::-1]
        best = np.where(overlaps.max(axis=1, initial=0) > 0, overlaps.argmax(axis=1), count)
        other = np.where(position[best] >= 0, position[best], best)[:, None] != np.arange(count)
        other &= (position[:-1] >= 0) & (overlaps > np.float32(p.iou_thresh)) & (p.iou_thresh < 1)
        trains = np.concatenate([position[best, None] >= 0, other], axis=1)
        box, choice = np.nonzero(trains)
        return box, np.where(choice == 0, position[best[box]], position[choice - 1])

    def _learn_classes(
        self, cells: np.ndarray, gradient: np.ndarray, where: tuple[np.ndarray, ...], labels: np.ndarray
    ) -> None:
        """Write the gradient of the scores. Where several boxes train one prediction, all of their classes count."""
        p = self.p
        scores, hit = cells[..., 5:], np.float32(1 - 0.5 * p.label_smooth_eps)
        _, first = np.unique(np.ravel_multi_index(where, cells.shape[:-1]), return_index=True)
        begun = tuple(index[first] for index in where)
        targets = np.zeros((len(first), p.num_class), np.float32)
        targets[np.arange(len(first)), labels[first]] = 1
        if p.use_focal_loss:
            true = scores[at(begun, labels[first])] + np.float32(1e-15)
            focus = -(1 - true) * (2 * true * np.log(true) + true - 1) / 2
            gradient[at(begun, slice(5, None))] = p.class_scale * (scores[begun] - targets) * focus[:, None]
        else:
            targets = targets * (1 - p.label_smooth_eps) + np.float32(0.5 * p.label_smooth_eps)
            gradient[at(begun, slice(5, None))] = p.class_scale * (scores[begun] - targets)
        later = np.delete(np.arange(len(labels)), first)
        again = (*(index[later] for index in where), labels[later])
        gradient[at(again[:-1], 5 + again[-1])] = p.class_scale * (scores[again] - hit)


@register("Yolov3DetectionOutput")
class Yolov3DetectionOutput(Layer):
    """top (1, 1, D, 7): a row (image, label, score, xmin, ymin, xmax, ymax) for each box found, best first.

    Bottoms: maps of predictions, one for each of the `mask_group_num` groups of `mask` and each `anchors_scale`. The
    score is objectness times class score; those above `confidence_threshold` count. Labels are class + 1. As in the
    fork, a box suppresses those of other classes and images too if they overlap by at least `nms_threshold`, and the
    image is always 0. If nothing is found there is a row for each image, with -1 behind its number.
    """

    fork = forks.YOLO
    traits = Traits(bottoms=(1, None), tops=1, shapes_by_values=True, needs_host=True)

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
        top[0].reshape(1, 1, 1, 7)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if any(blob.shape[:1] != bottom[0].shape[:1] for blob in bottom):
            raise self.error(f"its bottoms must agree in the first dimension: {self.named_shapes(bottom)}")
        for blob in bottom:
            check_cells(self, blob, self.p.num_box, self.p.num_classes)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, found = self.p, [np.empty((0, 6), np.float32)]
        masks = np.array(p.mask).reshape(len(bottom), p.num_box)
        for blob, scale, mask in zip(bottom, p.anchors_scale, masks, strict=True):
            cells = read_cells(self, blob, p.num_box, p.num_classes)
            size = np.array(blob.shape[:1:-1], np.float32) * np.float32(scale)
            cells[..., [0, 1, 4]] = sigmoid(cells[..., [0, 1, 4]])
            scores = sigmoid(cells[..., 5:]) * cells[..., 4:5]
            *cell, label = np.nonzero(scores > np.float32(p.confidence_threshold))
            ends = corners(decoded(cells, self.anchors[mask] / size)[tuple(cell)])
            found.append(np.column_stack([label + 1, scores[at(cell, label)], ends]).astype(np.float32))
        rows = np.concatenate(found)
        rows = rows[boxes.falling(rows[:, 1])]
        threshold = float(np.nextafter(np.float32(p.nms_threshold), np.float32(-1)))
        rows = np.pad(rows[boxes.suppress(rows[:, 2:], threshold)], ((0, 0), (1, 0)))
        if not len(rows):
            rows = np.full((bottom[0].shape[0], 7), -1, np.float32)
            rows[:, 0] = np.arange(len(rows))
        top[0].reshape(1, 1, *rows.shape)
        top[0].data[...] = self.engine.from_numpy(rows)

    def has_gradient(self, bottom_index: int) -> bool:
        return False
