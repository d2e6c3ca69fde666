"""YOLO, version 1 (Redmon et al. 2016): DetectionLoss and EvalDetection.

An image has side * side cells. Bottoms: predictions (N, cells * (classes + 5 * boxes)), as planes of the cells: a score
for each class, an objectness for each box, then x, y, w and h for each box; and ground truth (N, cells * 7): planes of
marks of difficult objects, of marks of cells with an object, and of classes, then x, y, w and h for each cell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe.data import boxes
from fcaffe.forks.ssd import Objects, judge
from fcaffe.forks.yolo import check_objects, corners, overlap
from fcaffe.layers.loss import LossLayer
from fcaffe.net import ALL_BOTTOMS, Blob, Layer, Traits, placements, register
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks

OF_YOLO = 100020  # the first number of the fields that are not those of MS-CNN's layer of the same name
FARTHEST = 20.0  # root mean square distance of a box that is not chosen


def check_shapes(layer: Layer, bottom: list[Blob], p: Any) -> None:
    """NetError unless the bottoms have the values of `side`, `num_class` and `num_object`."""
    cells, images = p.side**2, bottom[0].shape[0] if bottom[0].shape else 0
    wanted = [cells * (p.num_class + 5 * p.num_object), cells * 7]
    fits = all(blob.count == images * count for blob, count in zip(bottom, wanted, strict=True))
    if not fits or bottom[1].shape[:1] != (images,) or not p.num_object or not p.num_class or not cells:
        raise layer.error(
            f"needs {wanted[0]} predictions and {wanted[1]} values of ground truth for each image: "
            f"{layer.named_shapes(bottom)}; correct side, num_class or num_object"
        )


def split(p: Any, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Views of the predictions (N, ...): scores (N, classes, cells), objectness (N, boxes, cells), coordinates
    (N, boxes, 4, cells)."""
    images, cells = len(values), p.side**2
    planes = values.reshape(images, p.num_class + 5 * p.num_object, cells)
    scores, objectness, coordinates = np.split(planes, [p.num_class, p.num_class + p.num_object], axis=1)
    return scores, objectness, coordinates.reshape(images, p.num_object, 4, cells)


def read_truth(layer: Layer, blob: Blob, p: Any) -> tuple[Objects, np.ndarray]:
    """The objects, image by image, and their cells. Raises LayerError if one has no class or no box."""
    cells = p.side**2
    values = layer.engine.to_numpy(blob.data).reshape(blob.shape[0], cells * 7)
    images, where = np.nonzero(values[:, cells : 2 * cells])
    found = values[:, 3 * cells :].reshape(len(values), cells, 4)[images, where]
    rows = np.column_stack([values[images, 2 * cells + where], found])
    check_objects(layer, np.any(found[:, 2:] < 0, axis=1), images, rows, p.num_class)
    return Objects(images, rows[:, 0].astype(np.int64), found, values[images, where] == 1), where


def cell_origins(p: Any) -> np.ndarray:
    """(2, cells): column and row of each cell."""
    rows, columns = np.divmod(np.arange(p.side**2, dtype=np.float32), np.float32(p.side))
    return np.stack([columns, rows])


def decoded(p: Any, coordinates: np.ndarray) -> np.ndarray:
    """(N, cells, boxes, 4): x, y, w and h as fractions of the image.

    With `constriant`, x and y are fractions of a cell; with `sqrt`, w and h are square roots.
    """
    found = coordinates.copy()
    if p.constriant:
        found[:, :, :2] = (cell_origins(p) + found[:, :, :2]) / np.float32(p.side)
    if p.sqrt:
        found[:, :, 2:] **= 2
    return found.transpose(0, 3, 1, 2)


@register("DetectionLoss")
class DetectionLoss(LossLayer):
    """top = the sum of five means: of the squared errors of scores, of positions, of sides and of objectness over the
    objects, and of the objectness over the boxes without object.

    Of the boxes of a cell with an object, the one that overlaps most with it learns it; if none does, the nearest. As
    in the fork, the gradient is not that of the top: it is neither averaged so nor doubled, pulls objectness to the
    overlap instead of 1, and is divided by N. Without any object the means over objects count as 0, where the fork's
    value is NaN. MS-CNN has another layer of this name, which is refused.
    """

    fork = forks.YOLO_V1
    traits = replace(LossLayer.traits, needs_host=True)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.workers.run_shards_in_step()
        self.p = self.param.detection_loss_param
        if others := [field.name for field, _ in self.p.ListFields() if field.number < OF_YOLO]:
            raise self.error(
                f"{', '.join(others)} belong to the layer of this name in {forks.MSCNN}, which fcaffe does not have; "
                f"{forks.PYTHON_INSTEAD}"
            )

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        check_shapes(self, bottom, self.p)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, workers = self.p, self.workers
        self.samples = self.count_samples(bottom)
        values = self.engine.to_numpy(bottom[0].data)
        truth, cells = read_truth(self, bottom[1], p)
        scores, confidences, coordinates = split(p, values)
        gradient = np.zeros(values.shape, np.float32)
        d_scores, d_objectness, d_coordinates = split(p, gradient)

        candidates = decoded(p, coordinates)[truth.images, cells]
        overlaps = overlap(candidates, truth.boxes[:, None])
        distances = np.sqrt(((candidates - truth.boxes[:, None]) ** 2).sum(axis=-1))
        best = np.where(overlaps > 0, overlaps, -np.fmin(distances, FARTHEST)).argmax(axis=1)

        targets = truth.boxes.copy()
        if p.constriant:
            targets[:, :2] = targets[:, :2] * np.float32(p.side) - cell_origins(p)[:, cells].T
        if p.sqrt:
            targets[:, 2:] = np.sqrt(targets[:, 2:])
        errors = coordinates[truth.images, best, :, cells] - targets
        misses = scores[truth.images, :, cells] - np.eye(p.num_class, dtype=np.float32)[truth.labels]
        objectness = confidences[truth.images, best, cells]

        d_objectness[...] = p.noobject_scale * confidences
        d_objectness[truth.images, best, cells] = p.object_scale * (objectness - overlaps.max(axis=1))
        d_scores[truth.images, :, cells] = p.class_scale * misses
        d_coordinates[truth.images, best, :, cells] = p.coord_scale * errors

        of_objects = (
            p.class_scale * _squares(misses)
            + p.coord_scale * _squares(errors)
            + p.object_scale * _squares(objectness - 1)
        )
        others = p.noobject_scale * (_squares(confidences) - _squares(objectness))
        objects = workers.sum(float(len(best)))
        boxes_left = self.samples * p.side**2 * p.num_object - objects
        top[0].data[...] = of_objects / max(objects, 1) + others / max(boxes_left, 1)
        self.store(gradient)


@register("EvalDetection")
class EvalDetection(Layer):
    """top (N, num_class + cells * num_object * 4), for average precision: the number of objects of each class that are
    not difficult, then class, score, true and false positive of each box, by class, then score; 0 for unused rows.

    A box is true if its largest overlap with an object of its class is at least `threshold`, and it is the first one
    with that object. For a difficult object both columns are 0. With `nms` of at least 0, a box that overlaps by as
    much with a better one, of any class, is left out. A third bottom, which public nets have, is not read.
    """

    fork = forks.YOLO_V1
    traits = Traits(bottoms=(2, 3), tops=1, needs_host=True, labels=ALL_BOTTOMS)
    rule = placements.by_sample

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.p = self.param.eval_detection_param

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        check_shapes(self, bottom[:2], self.p)
        top[0].reshape(bottom[0].shape[0], self.p.num_class + self.p.side**2 * self.p.num_object * 4)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.p
        scores, objectness, coordinates = split(p, self.engine.to_numpy(bottom[0].data))
        truth, _ = read_truth(self, bottom[1], p)
        images, cells = len(scores), p.side**2
        labels = np.repeat(scores.argmax(axis=1), p.num_object, axis=1)  # (N, boxes), those of a cell in sequence
        likeliest, objects = scores.max(axis=1)[:, :, None], objectness.transpose(0, 2, 1)
        kind = pb.EvalDetectionParameter
        values = {kind.OBJ: objects, kind.PROB: likeliest + 0 * objects, kind.MULTIPLY: likeliest * objects}
        ranks = values[p.score_type].reshape(images, cells * p.num_object)
        found = decoded(p, coordinates).reshape(images, cells * p.num_object, 4)
        table = np.zeros((images, top[0].shape[1]), np.float32)
        for image in range(images):
            here = truth.of(truth.images == image)
            table[image, : p.num_class] = np.bincount(here.labels[~here.difficult], minlength=p.num_class)
            rows = self._rows(labels[image], ranks[image], found[image], here)
            table[image, p.num_class : p.num_class + rows.size] = rows.reshape(-1)
        top[0].data[...] = self.engine.from_numpy(table)

    def _rows(self, labels: np.ndarray, scores: np.ndarray, found: np.ndarray, truth: Objects) -> np.ndarray:
        """(D, 4): class, score, true and false positive of the boxes of an image that count."""
        order = boxes.falling(scores)
        if self.p.nms >= 0:
            threshold = float(np.nextafter(np.float32(self.p.nms), np.float32(-1)))
            order = order[boxes.suppress(corners(found[order]), threshold)]
        order = order[np.argsort(labels[order], kind="stable")]
        overlaps = np.where(labels[order, None] == truth.labels, overlap(found[order, None], truth.boxes), -np.inf)
        return np.column_stack([labels[order], scores[order], *judge(overlaps, self.p.threshold, truth.difficult)])


def _squares(values: np.ndarray) -> float:
    return float((values.astype(np.float64) ** 2).sum())
