"""What an SSD net finds: DetectionOutput, its files in the formats of VOC, ILSVRC and COCO, and DetectionEvaluate."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data import boxes
from fcaffe.data.annotated import read_label_map
from fcaffe.data.boxes import ImageSize
from fcaffe.errors import DataError
from fcaffe.forks import ssd
from fcaffe.input_files import read_input, reading
from fcaffe.layers.data import reading_errors
from fcaffe.net import Blob, register
from fcaffe.output_files import replacing
from fcaffe.proto import forks


def read_image_sizes(path: str) -> list[ImageSize]:
    """The lines "name height width" of a name_size_file. Raises DataError."""
    with reading(path, DataError, "list of names and sizes"):
        words = read_input(path).decode("utf-8", "surrogateescape").split()
    try:
        sizes = [ImageSize(name, int(h), int(w)) for name, h, w in zip(*[iter(words)] * 3, strict=True)]
    except ValueError:
        sizes = []
    if not sizes or min(min(size[1:]) for size in sizes) < 1:
        raise DataError(f"{path}: a name_size_file has lines of a name, a height and a width; correct it")
    return sizes


class DetectionFiles:
    """Collects the detections of a test and writes them when the last image is done; then the next test begins.

    `param` is a SaveOutputParameter. Raises DataError.
    """

    def __init__(self, param: Any, labels: Iterable[int]) -> None:
        self.param = param
        if param.output_format not in ("VOC", "ILSVRC", "COCO"):
            raise DataError(f'output_format "{param.output_format}" is none of VOC, ILSVRC, COCO')
        names = read_label_map(param.label_map_file)
        if missing := [str(label) for label in labels if label not in names]:
            raise DataError(f"{param.label_map_file} has no name for label {', '.join(missing)}; add it")
        self.names = {label: names[label].name for label in labels}
        images = read_image_sizes(param.name_size_file)
        count = param.num_test_image if param.HasField("num_test_image") else len(images)
        if not 1 <= count <= len(images):
            raise DataError(f"num_test_image {count} is not from 1 to the {len(images)} of {param.name_size_file}")
        self.images = images[:count]
        self.resize = checked_resize(param)
        self.found: list[tuple[str, int, float, list[float]]] = []  # image, label, score; x, y, width, height
        self.done = 0
        with reading(param.output_directory, DataError, "new folder"):
            os.makedirs(param.output_directory, exist_ok=True)

    def add_image(self, rows: np.ndarray) -> None:
        """Add the detections (D, 7) of the next image, in DetectionOutput's rows."""
        image = self.images[self.done]
        found = boxes.in_pixels(rows[:, 3:], image, self.resize)
        found[:, 2:] -= found[:, :2]
        found = (np.floor(found * np.float32(100) + 0.5) / 100).astype(np.float32)
        for row, box in zip(rows, found.tolist(), strict=True):
            self.found.append((image.name, int(row[1]), float(row[2]), box))
        self.done += 1
        if self.done == len(self.images):
            for name, text in self._texts().items():
                path = os.path.join(self.param.output_directory, self.param.output_name_prefix + name)
                with replacing(path, "detections", DataError) as temporary:
                    temporary.write_text(text, errors="surrogateescape")
            self.found, self.done = [], 0

    def _texts(self) -> dict[str, str]:
        """The content of each file by the end of its name."""
        if self.param.output_format == "COCO":
            return {".json": self._coco()}
        by_class = self.param.output_format == "VOC"
        lines: dict[str, list[str]] = {f"{name}.txt": [] for name in self.names.values()} if by_class else {".txt": []}
        for image, label, score, (x, y, width, height) in self.found:
            name, start = (f"{self.names[label]}.txt", image) if by_class else (".txt", f"{image} {label}")
            corners = f"{int(x)} {int(y)} {int(x) + int(width)} {int(y) + int(height)}"
            lines[name].append(f"{start} {score:g} {corners}\n")
        return {name: "".join(found) for name, found in lines.items()}

    def _coco(self) -> str:
        """The list of objects, in the spaces of Boost's writer. Names that are numbers get no quotes."""
        found = [
            {
                "image_id": _number(image),
                "category_id": _number(self.names[label]),
                "bbox": [_number(f"{value:.9g}") for value in box],
                "score": _number(f"{score:.9g}"),
            }
            for image, label, score, box in self.found
        ]
        text = json.dumps({"detections": found}, indent=4)
        return f"{text[text.index('[') : text.rindex(']')]}\n]\n"


def checked_resize(param: Any) -> Any:
    """The resize_param of a message; without one images are warped. Raises DataError."""
    if param.HasField("resize_param") and not (param.resize_param.height and param.resize_param.width):
        raise DataError("resize_param needs the height and the width of the net's input")
    return param.resize_param


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


JUDGED_ROW = 5  # image in the batch, label, score, 1 if it finds an object, 1 if it finds none


@register("DetectionOutput")
class DetectionOutput(ssd.DetectionRows):
    """top (1, 1, D, 7): a row (image, label, score, xmin, ymin, xmax, ymax) for each of the D boxes of a batch.

    Bottoms: codes of boxes (N, P * 4), or (N, P * classes * 4) without share_location; scores (N, P * classes); priors
    (1, 2, P * 4), and their variances. Rows are ordered by image, label and score. If nothing is found, there is a row
    for each image, with -1 behind its number. With `save_output_param` the boxes are written to files as well.
    """

    fork = forks.SSD
    traits = replace(ssd.DetectionRows.traits, bottoms=(3, 4))
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
        top[0].reshape(1, 1, 1, ssd.DETECTION_ROW)

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
        ssd.check_predictions(self, bottom, self.param.detection_output_param)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        predictions = ssd.read_predictions(self, bottom, self.param.detection_output_param)
        found = [self._of_image(image, predictions) for image in range(len(predictions.codes))]
        if self.files is not None:
            self.write_once(found)
        self.write_detections(np.concatenate([np.empty((0, ssd.DETECTION_ROW), np.float32), *found]), len(found), top)

    def write(self, everyones: list[list[np.ndarray]]) -> None:
        assert self.files is not None
        with reading_errors(self):
            for rows in itertools.chain(*everyones):
                self.files.add_image(rows)

    def _of_image(self, image: int, predictions: ssd.Predictions) -> np.ndarray:
        """The rows (D, 7) of an image."""
        p = self.param.detection_output_param
        codes, scores = predictions.codes[image], predictions.scores[image]
        lowest = p.confidence_threshold if p.HasField("confidence_threshold") else np.finfo(np.float32).min
        top_k = p.nms_param.top_k if p.nms_param.HasField("top_k") else -1
        found = [np.empty((0, ssd.DETECTION_ROW), np.float32)]
        for label in self.labels:
            candidates = np.flatnonzero(scores[:, label] > np.float32(lowest))
            candidates = candidates[boxes.falling(scores[candidates, label], top_k)]
            code = codes[candidates, 0 if p.share_location else label]
            variances = None if p.variance_encoded_in_target else predictions.variances[candidates]
            decoded = boxes.decode(code, predictions.priors[candidates], variances, p.code_type)
            kept = boxes.suppress(decoded, p.nms_param.nms_threshold, p.nms_param.eta)
            found.append(np.empty((len(kept), ssd.DETECTION_ROW), np.float32))
            found[-1][:, 0], found[-1][:, 1] = image, label
            found[-1][:, 2], found[-1][:, 3:] = scores[candidates[kept], label], decoded[kept]
        rows = np.concatenate(found)
        if 0 <= p.keep_top_k < len(rows):
            rows = rows[np.sort(boxes.falling(rows[:, 2], p.keep_top_k))]
        return rows


@register("DetectionEvaluate")
class DetectionEvaluate(ssd.DetectionRows):
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
        if bottom[0].shape[-1:] != (ssd.DETECTION_ROW,):
            raise self.error(f"needs detections of the shape (1, 1, D, 7): {self.named_shapes(bottom)}")
        ssd.check_ground_truth(self, bottom[1])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.detection_evaluate_param
        detections = self.engine.to_numpy(bottom[0].data).reshape(-1, ssd.DETECTION_ROW)
        detections = detections[detections[:, 0] != -1]
        objects = ssd.read_ground_truth(self, bottom[1], p.num_classes, p.background_label_id, ends=True)
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

    def _judged(self, detections: np.ndarray, objects: ssd.Objects) -> np.ndarray:
        """The rows (D, 5) of the detections (D, 7) of one label in an image that has these objects of the label."""
        p = self.param.detection_evaluate_param
        if len(objects.labels):
            detections = detections[boxes.falling(detections[:, 2])]
        found, there = detections[:, 3:], objects.boxes
        if self.images:
            image = self.images[self.next_image]
            found, there = (boxes.in_pixels(rows, image, self.resize) for rows in (found, there))
        overlap = boxes.overlaps(found, there, pixels=bool(self.images))
        columns = ssd.judge(overlap, p.overlap_threshold, objects.difficult & (not p.evaluate_difficult_gt))
        return np.column_stack([detections[:, :3], *columns]).astype(np.float32)
