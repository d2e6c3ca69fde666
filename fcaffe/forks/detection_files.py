"""Files of detections in the formats of VOC, ILSVRC and COCO."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from fcaffe.data.annotated import read_label_map
from fcaffe.data.boxes import ImageSize, in_pixels
from fcaffe.errors import DataError
from fcaffe.input_files import read_input, reading
from fcaffe.output_files import replacing


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
        boxes = in_pixels(rows[:, 3:], image, self.resize)
        boxes[:, 2:] -= boxes[:, :2]
        boxes = (np.floor(boxes * np.float32(100) + 0.5) / 100).astype(np.float32)
        for row, box in zip(rows, boxes.tolist(), strict=True):
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
