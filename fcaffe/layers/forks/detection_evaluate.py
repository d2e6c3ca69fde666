"""DetectionEvaluate: which detections find an object, for the average precision of a detector."""

from __future__ import annotations

import numpy as np

from fcaffe.data.boxes import falling, overlaps
from fcaffe.layers.data import reading_errors
from fcaffe.layers.forks.detection_files import checked_resize, in_pixels, read_image_sizes
from fcaffe.layers.forks.ground_truth import Objects, check_ground_truth, read_ground_truth
from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.proto import forks

ROW = 5  # image in the batch, label, score, 1 if it finds an object, 1 if it finds none


@register("DetectionEvaluate")
class DetectionEvaluate(Layer):
    """top (1, 1, M, 5): (-1, label, number of objects, -1, -1) for each class but the background, then a row (image,
    label, score, true, false) for each detection, by image and label.

    Bottoms: DetectionOutput's rows (1, 1, D, 7), and ground truth (1, 1, G, 8). A detection is true if its overlap with
    the object of its label that it overlaps most is at least `overlap_threshold`, and no better one has found that
    object. With evaluate_difficult_gt: false, a detection of a difficult object is neither.
    """

    fork = forks.SSD
    traits = Traits(bottoms=2, tops=1, shapes_by_values=True, needs_host=True)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.detection_evaluate_param
        if p.num_classes < 2 or p.background_label_id >= p.num_classes:
            raise self.error("detection_evaluate_param.num_classes must count the background, background_label_id")
        self.labels = [label for label in range(p.num_classes) if label != p.background_label_id]
        with reading_errors(self):
            self.images = read_image_sizes(p.name_size_file) if p.name_size_file else []
            self.resize = checked_resize(p)
        if self.images and self.context.turns.size > 1:
            raise self.error(
                "name_size_file needs all images in their order, and several workers share a test; remove it, so that "
                "overlaps are those of relative boxes"
            )
        self.next_image = 0
        top[0].reshape(1, 1, len(self.labels), ROW)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[0].shape[-1:] != (7,):
            raise self.error(f"needs detections of the shape (1, 1, D, 7): {self.named_shapes(bottom)}")
        check_ground_truth(self, bottom[1])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.detection_evaluate_param
        detections = self.engine.to_numpy(bottom[0].data).reshape(-1, 7)
        detections = detections[detections[:, 0] != -1]
        objects = read_ground_truth(self, bottom[1], p.num_classes, p.background_label_id, ends=True)
        counted = objects.labels if p.evaluate_difficult_gt else objects.labels[~objects.difficult]
        found = [np.array([[-1, label, (counted == label).sum(), -1, -1] for label in self.labels], np.float32)]
        for image in np.unique(detections[:, 0]):
            in_image = detections[detections[:, 0] == image]
            for label in np.unique(in_image[:, 1]):
                if label != -1:  # nothing was found
                    there = (objects.images == image) & (objects.labels == label)
                    found.append(self._judged(in_image[in_image[:, 1] == label], objects.of(there)))
            self.next_image = (self.next_image + 1) % max(1, len(self.images))
        rows = np.concatenate(found)
        top[0].reshape(1, 1, *rows.shape)
        top[0].data[...] = self.engine.from_numpy(rows)

    def _judged(self, detections: np.ndarray, objects: Objects) -> np.ndarray:
        """The rows (D, 5) of the detections (D, 7) of one label in an image that has these objects of the label."""
        p = self.param.detection_evaluate_param
        false = np.ones(len(detections), bool)
        true = ~false
        if len(objects.labels):
            detections = detections[falling(detections[:, 2])]
            found, there = detections[:, 3:], objects.boxes
            if self.images:
                image = self.images[self.next_image]
                found, there = in_pixels(found, image, self.resize), in_pixels(there, image, self.resize)
            overlap = overlaps(found, there, pixels=bool(self.images))
            best = overlap.argmax(axis=1)
            near = overlap.max(axis=1) >= np.float32(p.overlap_threshold)
            false = ~near
            if not p.evaluate_difficult_gt:
                near &= ~objects.difficult[best]
            _, first = np.unique(np.where(near, best, -1), return_index=True)
            true[first] = near[first]
            false |= near & ~true
        return np.column_stack([detections[:, :3], true, false]).astype(np.float32)

    def has_gradient(self, bottom_index: int) -> bool:
        return False
