"""RegionLoss: the loss of YOLO, version 2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe.errors import DataError
from fcaffe.forks.yolo import (
    CODES,
    OBJECTNESS,
    SCORES,
    SHAPE,
    WHOLE_IMAGE,
    GridLoss,
    clipped_overlap,
    decoded,
    read_anchors,
    read_cells,
    sigmoid,
)
from fcaffe.input_files import read_input, reading
from fcaffe.layers.data import reading_errors
from fcaffe.net import Blob, register
from fcaffe.net.layer import Held
from fcaffe.proto import forks

WARM_UP = 12800  # images for which all boxes are pulled to their anchors
CENTRE = np.array([0.5, 0.5, 0, 0], np.float32)  # code of a box in the middle of its cell, of its anchor's size


@register("RegionLoss")
class RegionLoss(GridLoss):
    """top = the sum of the squares of the gradient that it sends down, before its division by N. YOLOv2.

    Bottoms: predictions, with as many rows as columns whatever `side` says, and ground truth (N, boxes * 5).
    Objectness is pulled to 0 where no box overlaps by more than `thresh`. At the cell of each box's centre the anchor
    most like it learns box and class, and its objectness is pulled to 1. In the first 12800 / N passes all boxes are
    pulled to their anchors. With `softmax_tree`, a file with a line of name and parent for each class, there is a
    softmax for each group of siblings, and rows with x and y above 100000 label the whole image. `class_map` is a file
    with the class for each label.

    The fork counts the passes of all layers of a process; here each layer counts its own. Boxes without area are left
    out.
    """

    fork = forks.YOLO_V2
    traits = replace(GridLoss.traits, held=Held.ALIKE)

    @classmethod
    def follows_batches(cls, param: Any) -> bool:
        return True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        p = self.p = self.param.region_loss_param
        self.biases = read_anchors(self, p.biases)
        if len(self.biases) != p.num or p.coords != 4:
            raise self.error(f"needs coords: 4, and {2 * p.num} biases for num: {p.num}")
        self.parents = np.full(p.num_class, -1)
        if p.softmax_tree:
            self.parents = self._read_numbers(p.softmax_tree, 1)
            if len(self.parents) != p.num_class or (self.parents >= np.arange(p.num_class)).any():
                raise self.error(f"softmax_tree needs {p.num_class} lines, each with a name and the line of its parent")
        self.groups = np.cumsum(np.diff(self.parents, prepend=self.parents[:1]) != 0)  # of siblings
        self.class_map = self._read_numbers(p.class_map, 0) if p.class_map else np.arange(p.num_class)
        if not ((self.class_map >= 0) & (self.class_map < p.num_class)).all():
            raise self.error(f"class_map may have the classes 0 to {p.num_class - 1} only")
        self.passes = Blob(self.xp)

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
        if bottom[0].height != bottom[0].width:
            raise self.error(f"needs as many rows as columns: {self.named_shapes(bottom[:1])}")

    def state_blobs(self) -> dict[str, Blob]:
        return {"passes": self.passes}

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, side = self.p, bottom[0].width
        self.once(self._count_pass, read_now=True)
        self.samples = self.count_samples(bottom)
        cells = self._activated(read_cells(self, bottom[0], p.num, p.num_class))
        anchors = self.biases / np.float32(side)
        predicted, gradient, objectness = decoded(cells, anchors), np.zeros_like(cells), cells[..., OBJECTNESS]
        slope = objectness * (1 - objectness)
        background = p.noobject_scale * objectness * slope
        overlaps = self.best_overlaps(predicted, bottom, clipped_overlap)
        gradient[..., OBJECTNESS] = np.where(overlaps > np.float32(p.thresh), 0, background)
        if self.passes.data <= WARM_UP // int(self.samples):
            gradient[..., CODES] = _box_gradient(cells[..., CODES], CENTRE, 0.01)
        images, labels, truth = self.boxes_of(bottom, len(self.class_map))
        if p.softmax_tree:
            labelled = self._learn_labels_of_images(bottom, cells, background, gradient)
            boxed = ~np.isin(images, labelled)
            images, labels, truth = images[boxed], labels[boxed], truth[boxed]
        rows, columns, within = self.cells_of(truth, side, side)
        candidates = np.zeros((len(truth), p.num, 4), np.float32)  # about the origin, in size alone
        candidates[..., 2:] = anchors if p.bias_match else predicted[images, rows, columns, :, 2:]
        best = clipped_overlap(candidates, (truth * SHAPE)[:, None]).argmax(axis=1)
        where = (images, rows, columns, best)
        codes = np.concatenate([within, np.log(truth[:, 2:] / anchors[best])], axis=1)
        gradient[..., CODES][where] = _box_gradient(cells[where][:, CODES], codes, p.coord_scale)
        gradient[..., OBJECTNESS][where] = p.object_scale * (objectness[where] - 1) * slope[where]
        for *cell, label in zip(*where, self.class_map[labels], strict=True):
            self._learn_class(cells[tuple(cell)], gradient[tuple(cell)], label)
        squares = np.cumsum(gradient.reshape(-1) ** 2)  # one after the other in float32, as in the fork
        top[0].data[...] = squares[-1] if squares.size else 0
        self.store_cells(gradient)

    def _count_pass(self) -> None:
        self.passes.data[...] += 1

    def _activated(self, cells: np.ndarray) -> np.ndarray:
        """Sigmoid of x, y and objectness; softmax of each group of classes."""
        cells[..., [0, 1, OBJECTNESS]] = sigmoid(cells[..., [0, 1, OBJECTNESS]])
        starts = np.flatnonzero(np.diff(self.groups, prepend=-1))
        sizes = np.diff(starts, append=len(self.groups))
        scores = cells[..., SCORES]
        scores -= np.repeat(np.maximum.reduceat(scores, starts, axis=-1), sizes, axis=-1)
        np.exp(scores, out=scores)
        scores /= np.repeat(np.add.reduceat(scores, starts, axis=-1), sizes, axis=-1)
        return cells

    def _path(self, label: int) -> list[int]:
        """A class and its ancestors."""
        return [] if label < 0 else [label, *self._path(self.parents[label])]

    def _learn_class(self, cell: np.ndarray, gradient: np.ndarray, label: int) -> None:
        """Write the gradient (5 + classes) of the scores of one prediction: of a class, its ancestors, and all of their
        siblings."""
        path = self._path(label)
        learns = np.flatnonzero(np.isin(self.groups, self.groups[path]))
        gradient[5 + learns] = self.p.class_scale * (cell[5 + learns] - np.isin(learns, path))

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
            probability = cells[image, ..., OBJECTNESS] * cells[image, ..., SCORES][..., self._path(label)].prod(-1)
            gradient[image] = 0
            gradient[image, ..., OBJECTNESS] = background[image]
            where = (image, *np.unravel_index(probability.argmax(), probability.shape))
            objectness = cells[where][OBJECTNESS]
            lack = min(objectness - np.float32(0.3), 0)
            gradient[..., OBJECTNESS][where] = self.p.object_scale * lack * objectness * (1 - objectness)
            self._learn_class(cells[where], gradient[where], label)
        return found


def _box_gradient(values: np.ndarray, codes: np.ndarray, scale: float) -> np.ndarray:
    gradient = np.float32(scale) * (values - codes)
    gradient[..., :2] *= values[..., :2] * (1 - values[..., :2])
    return gradient
