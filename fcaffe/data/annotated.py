"""Annotated images as SSD stores and samples them: batches of images with boxes around their objects; label maps.

The objects of an image are an array of rows (label, instance, xmin, ymin, xmax, ymax, difficult), float32. Corners are
relative to the size of the image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe.data import boxes
from fcaffe.data.augmentation import distort, expand
from fcaffe.data.batches import DatumBatches
from fcaffe.data.database import Database, Record
from fcaffe.data.datum import datum_to_array, name_of
from fcaffe.data.prefetch import Batch
from fcaffe.data.transformer import Decision, Transformer
from fcaffe.errors import DataError, ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.text import read_text
from fcaffe.rng import CaffeRandom

CORNERS = slice(2, 6)
MOST_OBJECTS = 300  # of an image, in MobileNet-YOLO's labels
NO_OBJECTS = np.empty((0, 7), np.float32)

Corners = tuple[float, float, float, float]  # xmin, ymin, xmax, ymax


def parse_annotated(key: bytes, value: bytes) -> Any:
    """Parse the AnnotatedDatum of a record. Raises DataError, which names the key."""
    try:
        annotated = pb.AnnotatedDatum.FromString(value)
    except DecodeError as problem:
        raise DataError(f"record {name_of(key)} is not an AnnotatedDatum ({problem})") from problem
    if not annotated.HasField("datum"):
        raise DataError(f"record {name_of(key)} is not an AnnotatedDatum: build the database with convert_annoset")
    return annotated


def objects_of(annotated: Any) -> np.ndarray:
    """The objects of an AnnotatedDatum, group by group."""
    rows = [
        (group.group_label, one.instance_id, box.xmin, box.ymin, box.xmax, box.ymax, box.difficult)
        for group in annotated.annotation_group
        for one in group.annotation
        for box in (one.bbox,)
    ]
    return np.array(rows, np.float32).reshape(-1, 7)


def read_label_map(path: str) -> dict[int, Any]:
    """The LabelMapItems (label, name, display_name) of a file by label. Raises DataError, also for repeated labels."""
    try:
        items = read_text(path, pb.LabelMap).item
    except ProtoError as problem:
        raise DataError(f"cannot read a label map: {problem}") from problem
    found: dict[int, Any] = {}
    for item in items:
        if found.setdefault(item.label, item) is not item:
            raise DataError(f"{path}: label {item.label} has two names, {found[item.label].name} and {item.name}")
    return found


def project(objects: np.ndarray, window: Corners, emit: Any = None) -> np.ndarray:
    """The objects in a window of the image, clipped to it, with corners relative to it.

    Objects outside of the window are dropped, and so are objects that do not meet the EmitConstraint `emit`: their
    centre (CENTER) or a share of their area (MIN_OVERLAP) must be in the window.
    """
    corners = objects[:, CORNERS]
    low, high = np.array(window[:2]), np.array(window[2:])
    seen = ((corners[:, :2] < high) & (corners[:, 2:] > low)).all(1)
    if emit is not None and emit.emit_type == pb.EmitConstraint.CENTER:
        centres = (corners[:, :2] + corners[:, 2:]) / 2
        seen &= ((centres >= low) & (centres <= high)).all(1)
    elif emit is not None:
        seen &= boxes.coverages(corners, np.array([window]))[:, 0] > emit.emit_overlap
    objects = objects[seen].copy()
    relative = (objects[:, CORNERS].reshape(-1, 2, 2) - low) / (high - low)
    objects[:, CORNERS] = np.clip(relative, 0, 1).reshape(-1, 4)
    return objects[(objects[:, 4] > objects[:, 2]) & (objects[:, 5] > objects[:, 3])]


def mirror(objects: np.ndarray) -> np.ndarray:
    objects = objects.copy()
    objects[:, [2, 4]] = 1 - objects[:, [4, 2]]
    return objects


def check_sampler(param: Any) -> None:
    """Raise DataError for a BatchSampler message whose limits no window can meet."""
    sampler = param.sampler
    if not 0 < sampler.min_scale <= sampler.max_scale <= 1:
        raise DataError("batch_sampler: 0 < min_scale <= max_scale <= 1 must hold")
    if not 0 < sampler.min_aspect_ratio <= 1 <= sampler.max_aspect_ratio:
        raise DataError("batch_sampler: 0 < min_aspect_ratio <= 1 <= max_aspect_ratio must hold")


def draw_windows(param: Any, corners: np.ndarray, random: CaffeRandom) -> list[Corners]:
    """Random windows that meet the constraint of a BatchSampler message: up to `max_sample`, by up to `max_trials`
    trials."""
    found: list[Corners] = []
    most = param.max_sample if param.HasField("max_sample") else param.max_trials
    for _ in range(param.max_trials if param.use_original_image else 0):
        if len(found) == most:
            break
        window = _window(param.sampler, random)
        if _satisfies(window, corners, param.sample_constraint):
            found.append(window)
    return found


def _window(sampler: Any, random: CaffeRandom) -> Corners:
    scale = float(random.uniform(sampler.min_scale, sampler.max_scale, 1)[0])
    narrowest, widest = max(sampler.min_aspect_ratio, scale**2), min(sampler.max_aspect_ratio, 1 / scale**2)
    root = float(random.uniform(narrowest, widest, 1)[0]) ** 0.5
    width, height = min(scale * root, 1.0), min(scale / root, 1.0)
    left, top = random.uniform(0, 1, 2).tolist()
    left, top = left * (1 - width), top * (1 - height)
    return left, top, left + width, top + height


def _satisfies(window: Corners, corners: np.ndarray, constraint: Any) -> bool:
    """Whether one object is as much in the window as each limit of the constraint says."""
    if not constraint.ListFields():
        return True
    one = np.array([window])
    measures = {
        "jaccard_overlap": boxes.overlaps(corners, one),
        "sample_coverage": boxes.coverages(one, corners).T,
        "object_coverage": boxes.coverages(corners, one),
    }
    fits = np.ones(len(corners), bool)
    for name, values in measures.items():
        if constraint.HasField(f"min_{name}"):
            fits &= values[:, 0] >= getattr(constraint, f"min_{name}")
        if constraint.HasField(f"max_{name}"):
            fits &= values[:, 0] <= getattr(constraint, f"max_{name}")
    return bool(fits.any())


class AnnotatedBatches(DatumBatches):
    """The AnnotatedDatum records of a database, `batch_size` at a time.

    `batch.objects` has the objects of each image if `has_boxes`, else `batch.labels` has the labels. Distorted colours,
    a larger canvas and a random window come before the resizing and the crop of the transformer; the boxes
    follow. What is random depends on the seed of the image alone. `param` is the LayerParameter.
    """

    def __init__(self, database: Database, transformer: Transformer, batch_size: int, param: Any) -> None:
        self.param = param.transform_param
        self.emit = self.param.emit_constraint if self.param.HasField("emit_constraint") else None
        self.samplers = list(param.annotated_data_param.batch_sampler)
        for sampler in self.samplers:
            check_sampler(sampler)
        if self.param.HasField("expand_param") and transformer.mean_file:
            raise DataError("transform_param.expand_param needs mean_value, for a canvas is larger than a mean_file")
        first = parse_annotated(*database.peek())
        self.has_boxes = first.HasField("type") or param.annotated_data_param.HasField("anno_type")
        super().__init__(database, transformer, batch_size)

    def fill(self, batch: Batch) -> None:
        batch.objects = [NO_OBJECTS] * self.share.count
        super().fill(batch)

    def load(self, item: Record) -> tuple[np.ndarray, tuple[np.ndarray, int]]:
        """The image; its objects, and the label of an image without boxes."""
        try:
            annotated = parse_annotated(*item)
            image = datum_to_array(annotated.datum, item[0], self.transformer.color)
        except DataError as problem:
            raise DataError(f'{problem} (in the {self.database.kind} "{self.database.source}")') from problem
        return image, (objects_of(annotated), annotated.datum.label)

    def prepare(self, item: Record, decision: Decision) -> tuple[np.ndarray, Any]:
        image, (objects, label) = self.load(item)
        image, objects = self._sample(image, objects, CaffeRandom(decision.seed))
        _, height, width = image.shape
        image = self.transformer.augment(image, decision)
        resize = self.transformer.resize(decision)
        if resize is not None and len(objects):
            objects[:, CORNERS] = resize.boxes(objects[:, CORNERS], height, width)
        _, height, width = image.shape
        rows, columns = self.transformer.window(image.shape, decision)
        crop = (columns.start / width, rows.start / height, columns.stop / width, rows.stop / height)
        objects = project(objects, crop, self.emit)
        return image, (mirror(objects) if decision.mirror else objects, label)

    def set_label(self, batch: Batch, index: int, label: Any) -> None:
        batch.objects[index], batch.labels[index] = label

    def _sample(self, image: np.ndarray, objects: np.ndarray, random: CaffeRandom) -> tuple[np.ndarray, np.ndarray]:
        """The image with distorted colours, on a larger canvas, cut to a random window, and its objects."""
        distorts, expands = self.param.HasField("distort_param"), self.param.HasField("expand_param")
        if not (distorts or expands or self.samplers):
            return image, objects
        if image.dtype != np.uint8:
            raise DataError("distort_param, expand_param and batch_sampler work on images of bytes, not of float_data")
        pixels = image.transpose(1, 2, 0)
        if distorts and len(image) == 3:
            pixels = distort(pixels, self.param.distort_param, random)
        if expands:
            pixels, canvas = expand(pixels, self.param.expand_param, self.transformer.mean, random)
            objects = project(objects, canvas, self.emit)
        corners = objects[:, CORNERS]
        if windows := [window for sampler in self.samplers for window in draw_windows(sampler, corners, random)]:
            window = windows[random.draw() % len(windows)]
            height, width, _ = pixels.shape
            left, right = int(window[0] * width), max(int(window[2] * width), int(window[0] * width) + 1)
            top, bottom = int(window[1] * height), max(int(window[3] * height), int(window[1] * height) + 1)
            pixels = pixels[top:bottom, left:right]
            objects = project(objects, (left / width, top / height, right / width, bottom / height), self.emit)
        return pixels.transpose(2, 0, 1), objects
