"""What an SSD net finds: DetectionOutput, and DetectionEvaluate for the average precision of a detector."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data import boxes
from fcaffe.forks.detection_files import DetectionFiles, checked_resize, read_image_sizes
from fcaffe.forks.ssd import (
    DETECTION_ROW,
    DetectionRows,
    Objects,
    Predictions,
    check_ground_truth,
    check_predictions,
    judge,
    read_ground_truth,
    read_predictions,
)
from fcaffe.layers.data import reading_errors
from fcaffe.net import Blob, register
from fcaffe.proto import forks

JUDGED_ROW = 5  # image in the batch, label, score, 1 if it finds an object, 1 if it finds none


@register("DetectionOutput")
class DetectionOutput(DetectionRows):
    """top (1, 1, D, 7): a row (image, label, score, xmin, ymin, xmax, ymax) for each of the D boxes of a batch.

    Bottoms: codes of boxes (N, P * 4), or (N, P * classes * 4) without share_location; scores (N, P * classes); priors
    (1, 2, P * 4), and their variances. Rows are ordered by image, label and score. If nothing is found, there is a row
    for each image, with -1 behind its number. With `save_output_param` the boxes are written to files as well.
    """

    fork = forks.SSD
    traits = replace(DetectionRows.traits, bottoms=(3, 4))
    files: DetectionFiles | None = None

    @classmethod
    def follows_batches(cls, param: Any) -> bool:
        return bool(param.detection_output_param.save_output_param.output_directory)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.detection_output_param
        if p.num_classes < 1:
            raise self.error("detection_output_param.num_classes is missing")
        if not 0 < p.nms_param.eta <= 1 or p.nms_param.nms_threshold < 0:
            raise self.error("nms_param needs eta above 0 and up to 1, and an nms_threshold of at least 0")
        if p.visualize:
            log.warning(f'layer "{self.name}": visualize has no effect; fcaffe detect-objects --out draws boxes')
        self.labels = [label for label in range(p.num_classes) if label != p.background_label_id]
        self._open_files()
        top[0].reshape(1, 1, 1, DETECTION_ROW)

    def _open_files(self) -> None:
        p = self.param.detection_output_param.save_output_param
        if not p.output_directory:
            return
        if not (p.label_map_file and p.name_size_file):
            log.warning(f'layer "{self.name}" saves nothing without both label_map_file and name_size_file')
            return
        with reading_errors(self):
            self.files = DetectionFiles(p, self.labels)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        check_predictions(self, bottom, self.param.detection_output_param)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        predictions = read_predictions(self, bottom, self.param.detection_output_param)
        found = [self._of_image(image, predictions) for image in range(len(predictions.codes))]
        if self.files is not None:
            self.write_once(found)
        self.write_detections(np.concatenate([np.empty((0, DETECTION_ROW), np.float32), *found]), len(found), top)

    def write(self, everyones: list[list[np.ndarray]]) -> None:
        assert self.files is not None
        with reading_errors(self):
            for rows in itertools.chain(*everyones):
                self.files.add_image(rows)

    def _of_image(self, image: int, predictions: Predictions) -> np.ndarray:
        """The rows (D, 7) of an image."""
        p = self.param.detection_output_param
        codes, scores = predictions.codes[image], predictions.scores[image]
        lowest = p.confidence_threshold if p.HasField("confidence_threshold") else np.finfo(np.float32).min
        top_k = p.nms_param.top_k if p.nms_param.HasField("top_k") else -1
        found = [np.empty((0, DETECTION_ROW), np.float32)]
        for label in self.labels:
            candidates = np.flatnonzero(scores[:, label] > np.float32(lowest))
            candidates = candidates[boxes.falling(scores[candidates, label], top_k)]
            code = codes[candidates, 0 if p.share_location else label]
            variances = None if p.variance_encoded_in_target else predictions.variances[candidates]
            decoded = boxes.decode(code, predictions.priors[candidates], variances, p.code_type)
            kept = boxes.suppress(decoded, p.nms_param.nms_threshold, p.nms_param.eta)
            found.append(np.empty((len(kept), DETECTION_ROW), np.float32))
            found[-1][:, 0], found[-1][:, 1] = image, label
            found[-1][:, 2], found[-1][:, 3:] = scores[candidates[kept], label], decoded[kept]
        rows = np.concatenate(found)
        if 0 <= p.keep_top_k < len(rows):
            rows = rows[np.sort(boxes.falling(rows[:, 2], p.keep_top_k))]
        return rows


@register("DetectionEvaluate")
class DetectionEvaluate(DetectionRows):
    """top (1, 1, M, 5): (-1, label, number of objects, -1, -1) for each class but the background, then a row (image,
    label, score, true, false) for each detection, by image and label.

    Bottoms: DetectionOutput's rows (1, 1, D, 7), and ground truth (1, 1, G, 8). A detection is true if its overlap with
    the object of its label that it overlaps most is at least `overlap_threshold`, and no better one has found that
    object. With evaluate_difficult_gt: false, a detection of a difficult object is neither.
    """

    fork = forks.SSD

    @classmethod
    def follows_batches(cls, param: Any) -> bool:
        return bool(param.detection_evaluate_param.name_size_file)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.detection_evaluate_param
        if p.num_classes < 2 or p.background_label_id >= p.num_classes:
            raise self.error("detection_evaluate_param.num_classes must count the background, background_label_id")
        self.labels = [label for label in range(p.num_classes) if label != p.background_label_id]
        with reading_errors(self):
            self.images = read_image_sizes(p.name_size_file) if p.name_size_file else []
            self.resize = checked_resize(p)
        self.first_image = self.next_image = 0  # of the present pass, and behind it
        top[0].reshape(1, 1, len(self.labels), JUDGED_ROW)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[0].shape[-1:] != (DETECTION_ROW,):
            raise self.error(f"needs detections of the shape (1, 1, D, 7): {self.named_shapes(bottom)}")
        check_ground_truth(self, bottom[1])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.detection_evaluate_param
        detections = self.engine.to_numpy(bottom[0].data).reshape(-1, DETECTION_ROW)
        detections = detections[detections[:, 0] != -1]
        objects = read_ground_truth(self, bottom[1], p.num_classes, p.background_label_id, ends=True)
        counted = objects.labels if p.evaluate_difficult_gt else objects.labels[~objects.difficult]
        if self.context.may_change():
            self.first_image = self.next_image
        self.next_image = self.first_image
        found = [np.array([[-1, label, (counted == label).sum(), -1, -1] for label in self.labels], np.float32)]
        for image in np.unique(detections[:, 0]):
            in_image = detections[detections[:, 0] == image]
            for label in np.unique(in_image[:, 1]):
                if label != -1:  # nothing was found
                    there = (objects.images == image) & (objects.labels == label)
                    found.append(self._judged(in_image[in_image[:, 1] == label], objects.of(there)))
            self.next_image = (self.next_image + 1) % max(1, len(self.images))
        self.write_rows(np.concatenate(found), top)

    def _judged(self, detections: np.ndarray, objects: Objects) -> np.ndarray:
        """The rows (D, 5) of the detections (D, 7) of one label in an image that has these objects of the label."""
        p = self.param.detection_evaluate_param
        if len(objects.labels):
            detections = detections[boxes.falling(detections[:, 2])]
        found, there = detections[:, 3:], objects.boxes
        if self.images:
            image = self.images[self.next_image]
            found, there = (boxes.in_pixels(rows, image, self.resize) for rows in (found, there))
        overlap = boxes.overlaps(found, there, pixels=bool(self.images))
        columns = judge(overlap, p.overlap_threshold, objects.difficult & (not p.evaluate_difficult_gt))
        return np.column_stack([detections[:, :3], *columns]).astype(np.float32)
