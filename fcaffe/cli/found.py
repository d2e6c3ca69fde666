"""Objects and classes of pixels that a net finds in pictures: printed, and drawn into copies of them."""

from __future__ import annotations

import colorsys
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fcaffe import log
from fcaffe.cli.flags import flag
from fcaffe.cli.table import say
from fcaffe.data.boxes import ImageSize, falling, in_pixels
from fcaffe.data.images import encode_image, opencv, read_file, resize_image
from fcaffe.errors import DataError, FcaffeError, UsageError
from fcaffe.input_files import reading
from fcaffe.output_files import PICTURE, check_output, replacing
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.predictor import OBJECTS, ROW, Predictor

GOLDEN_RATIO = 0.618


@dataclass(frozen=True)
class DrawFlags:
    """Which objects are shown, and where they are drawn."""

    out: str = flag("FOLDER", "Draw objects, or classes of pixels, into copies of the pictures there.")
    threshold: float = flag("X", "Lowest score of an object (0.5).", default=0.5)


def show_found(predictor: Predictor, paths: Sequence[str], drawing: DrawFlags, names: dict[int, str]) -> int:
    """Print what a net finds that finds objects or classifies pixels, and draw it into --out.

    Returns the exit code, which is 1 if a picture could not be read.
    """
    code, form = 0, predictor.preprocessing.form
    for path, target in zip(paths, _targets_of(paths, drawing.out), strict=True):
        try:
            pixels = form._replace(size=None).load(read_file(path), f'"{path}"')
            output = predictor.output(form.fit(pixels))
        except FcaffeError as problem:
            log.error(str(problem))
            code = 1
            continue
        if predictor.kind == OBJECTS:
            _tell_objects(output, path, pixels, target, names, drawing.threshold)
        else:
            _tell_mask(output, path, pixels, target, names)
    return code


def _tell_objects(
    rows: np.ndarray, path: str, pixels: np.ndarray, target: str, names: dict[int, str], threshold: float
) -> None:
    """Print the objects in the rows of a DetectionOutput, and draw them into a copy `target` of the picture, unless
    that is empty."""
    objects = _objects(rows.reshape(-1, ROW), threshold, pixels.shape[1:])
    for found in objects:
        say(f"{path}: {_name(found.label, names)} {found.score:.4f} {' '.join(map(str, found.box))}")
    log.info(f"{path}: {len(objects)} object(s)")
    if target:
        _write_picture(target, draw(pixels, objects, names))


def _tell_mask(scores: np.ndarray, path: str, pixels: np.ndarray, target: str, names: dict[int, str]) -> None:
    """Print the share of the pixels of each class, of scores (1, C, H, W).

    Lays the colours of the classes over a copy `target` of the picture, unless that is empty.
    """
    mask = scores[0].argmax(axis=0).astype(np.uint8)
    counts = np.bincount(mask.ravel(), minlength=len(scores[0]))
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
    say(f"{path}: {'  '.join(f'{_name(label, names)} {counts[label] / mask.size:.1%}' for label in order)}")
    if target:
        height, width = pixels.shape[1:]
        colors = np.array([_color(label) for label in range(len(scores[0]))])
        full = resize_image(mask[np.newaxis], height, width, nearest=True)[0]
        laid = (np.broadcast_to(pixels, (3, height, width)) + colors[full].transpose(2, 0, 1)) / 2
        _write_picture(target, laid.astype(np.uint8))


def _write_picture(target: str, pixels: np.ndarray) -> None:
    content = encode_image(pixels, os.path.splitext(target)[1].lstrip("."))
    with replacing(target, "picture", DataError) as temporary:
        temporary.write_bytes(content)


def _color(label: int) -> list[float]:
    """A colour for a label (blue, green, red)."""
    return [255 * part for part in colorsys.hsv_to_rgb(label * GOLDEN_RATIO % 1, 0.8, 0.9)]


def _targets_of(images: Sequence[str], out: str) -> list[str]:
    """The path of each drawn picture; empty without a folder. Raises UsageError if one would overwrite another."""
    if not out:
        return [""] * len(images)
    targets = [os.path.join(out, os.path.basename(path)) for path in images]
    if len(set(targets)) < len(targets):
        raise UsageError(f"several pictures have the same name, so they cannot all go to {out}: name fewer at a time")
    for target in targets:
        check_output(target, PICTURE, *images)
    with reading(out, UsageError, "folder for pictures"):
        os.makedirs(out, exist_ok=True)
    return targets


class Found(NamedTuple):
    """An object: its label, its score in [0, 1], and its box (xmin, ymin, xmax, ymax) in pixels."""

    label: int
    score: float
    box: tuple[int, int, int, int]


def _objects(rows: np.ndarray, threshold: float, size: tuple[int, ...]) -> list[Found]:
    """The objects of these rows in a picture of this height and width, with scores from `threshold` on, best first."""
    rows = rows[(rows[:, 1] >= 0) & (rows[:, 2] >= threshold)]
    rows = rows[falling(rows[:, 2])]
    boxes = in_pixels(rows[:, 3:], ImageSize("", *size), pb.ResizeParameter()).round().astype(int)
    return [Found(int(row[1]), float(row[2]), tuple(box)) for row, box in zip(rows, boxes.tolist(), strict=True)]


def _name(label: int, names: dict[int, str]) -> str:
    return names.get(label, f"label {label}")


def draw(pixels: np.ndarray, objects: Sequence[Found], names: dict[int, str]) -> np.ndarray:
    """A copy of the picture (channels x height x width) with the boxes, names and scores of the objects."""
    cv2 = opencv()
    picture = np.array(np.broadcast_to(pixels, (3, *pixels.shape[1:])).transpose(1, 2, 0), order="C")
    size = max(0.4, max(picture.shape) / 1200)
    width = max(1, round(2 * size))
    for found in reversed(objects):  # the best ones on top
        color = _color(found.label)
        x, y, right, bottom = found.box
        cv2.rectangle(picture, (x, y), (right, bottom), color, width)
        text = f"{_name(found.label, names)} {found.score:.2f}"
        (length, height), below = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, width)
        left, top = max(0, min(x, picture.shape[1] - length)), max(0, y - height - below)
        cv2.rectangle(picture, (left, top), (left + length, top + height + below), color, -1)
        cv2.putText(picture, text, (left, top + height), cv2.FONT_HERSHEY_SIMPLEX, size, (0, 0, 0), width, cv2.LINE_AA)
    return picture.transpose(2, 0, 1)
