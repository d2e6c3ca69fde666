"""The form in which a data set stores pictures: channels, size, and how pictures of other sizes get it.

`fcaffe dataset` writes it to info.json beside the databases, under the names that DIGITS uses. All that load a picture
for a net of the data set load it by `Form.load`, so that the net sees what it was trained on.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import numpy as np

from fcaffe.data.images import Color, damage_of, decode_image, resize_image
from fcaffe.errors import DataError
from fcaffe.input_files import read_input, reading

INFO, LABELS, MEAN = "info.json", "labels.txt", "mean.binaryproto"
PICTURES = "pictures folder"
MODES = ["squash", "crop", "fill", "half_crop"]  # the last one is DIGITS' alone
LARGEST = 1 << 24  # bytes of info.json and labels.txt


class Form(NamedTuple):
    """Channels (1: gray, 3: blue, green, red), height and width (None: as they are) of the pictures of a data set.

    `mode` says how a picture gets the size. squash changes its aspect ratio. crop retains it and cuts off what is
    beyond the longer side, fill retains it and leaves a black border, and half_crop does half of both.
    """

    channels: int = 3
    size: tuple[int, int] | None = None
    mode: str = MODES[0]

    def __str__(self) -> str:
        return f"{self.channels} x {' x '.join(map(str, self.size or ()))}, {self.mode}"

    @property
    def color(self) -> Color:
        return Color.GRAY if self.channels == 1 else Color.COLOR

    def load(self, content: bytes, what: str) -> np.ndarray:
        """The picture in the bytes of a file as the data set stores it: uint8, channels x height x width.

        The EXIF orientation is applied. Raises DataError for a damaged file, which names it by `what`.
        """
        if damage := damage_of(content):
            raise DataError(f"{what} is {damage}")
        return self.fit(decode_image(content, what, self.color))

    def fit(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels (channels x height x width) in the size of the data set."""
        if self.size is None or pixels.shape[1:] == self.size:
            return pixels
        if self.mode == "squash":
            return resize_image(pixels, *self.size)
        ratios = [wanted / own for wanted, own in zip(self.size, pixels.shape[1:], strict=True)]
        scale = {"crop": max(ratios), "fill": min(ratios)}.get(self.mode, sum(ratios) / 2)
        inner = [max(1, round(own * scale)) for own in pixels.shape[1:]]
        resized = resize_image(pixels, *inner)
        fitted = np.zeros((len(pixels), *self.size), np.uint8)
        target, source = [slice(None)], [slice(None)]
        for wanted, own in zip(self.size, inner, strict=True):
            extent = min(wanted, own)
            target.append(slice((wanted - extent) // 2, (wanted - extent) // 2 + extent))
            source.append(slice((own - extent) // 2, (own - extent) // 2 + extent))
        fitted[tuple(target)] = resized[tuple(source)]
        return fitted

    def info(self, pictures: str = "") -> str:
        """The text of info.json; `pictures` is the folder in which the paths of train.txt and test.txt begin."""
        assert self.size is not None
        fields = {"image dimensions": [*self.size, self.channels], "image resize mode": self.mode}
        files = {"labels file": LABELS, "mean file": MEAN, **({PICTURES: pictures} if pictures else {})}
        return json.dumps({**fields, **files}, indent=2) + "\n"


def read_form(folder: str) -> tuple[Form | None, dict[str, Any]]:
    """The form in the info.json of a folder, None without the file; and all its fields. Raises DataError."""
    path = os.path.join(folder, INFO)
    if not os.path.isfile(path):
        return None, {}
    with reading(path, DataError, "description of a data set"):
        content = read_input(path, LARGEST)
    try:
        fields = json.loads(content)
        height, width, channels = map(int, fields["image dimensions"])
        mode = fields.get("image resize mode", MODES[0])
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise DataError(f'{path}: needs "image dimensions": [height, width, channels]; got {problem!r}') from problem
    if min(height, width) < 1 or channels not in (1, 3) or mode not in MODES:
        raise DataError(f"{path}: pictures of {channels} channels and {height} x {width} pixels, {mode}, are unknown")
    return Form(channels, (height, width), mode), fields


def read_labels(path: str) -> list[str]:
    """The names of the classes in a labels.txt, one a line. Raises DataError."""
    with reading(path, DataError, "list of class names"):
        text = read_input(path, LARGEST).decode("utf-8-sig", "surrogateescape")
    names = [line.strip() for line in text.splitlines()]
    while names and not names[-1]:
        names.pop()
    if not names or not all(names):
        raise DataError(f"{path}: line {names.index('') + 1 if names else 1} is empty; give a name on each line")
    return names


def labels_beside(source: str) -> list[str]:
    """The names in the labels.txt beside a database, or in a folder `source` that has one itself; [] without one."""
    for folder in (os.path.dirname(os.path.normpath(source)), source):
        if os.path.isfile(path := os.path.join(folder, LABELS)):
            return read_labels(path)
    return []
