"""Window files (of R-CNN): images with labelled boxes, and the crop and warp of a box to the net's input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

import numpy as np

from fcaffe import log
from fcaffe.data.images import resize_image
from fcaffe.data.lines import numbered_lines
from fcaffe.errors import DataError
from fcaffe.input_files import open_input

CHANNELS = 3  # images are read in colour
LOG_INTERVAL = 100  # images
FIELDS = 6  # of a window: class, overlap, x1, y1, x2, y2
LARGEST = 2**31


class Window(NamedTuple):
    """A box in the image of this index, with its last column and row. Label 0 is background."""

    image: int
    label: int
    x1: int
    y1: int
    x2: int
    y2: int

    def __str__(self) -> str:
        return f"window ({self.x1}, {self.y1}) to ({self.x2}, {self.y2})"


@dataclass
class WindowFile:
    """Paths of the images, and the windows as int32 rows of `Window`'s fields."""

    images: list[str]
    foreground: np.ndarray
    background: np.ndarray


def read_window_file(source: str, root_folder: str, fg_threshold: float, bg_threshold: float) -> WindowFile:
    """Read the windows of a file, and sort them by their overlap with an object. Raises DataError.

    For each image, the file has `# index`, a path, channels, height, width, the number of windows, and for each of them
    class, overlap, x1, y1, x2, y2. From fg_threshold on a window is foreground, below bg_threshold background.
    """
    images: list[str] = []
    foreground, background = [], []
    index = -1
    try:
        with open_input(source) as file:
            words = _Words(source, file)
            while (image := _read_image(words)) is not None:
                index, path, shape, windows = image
                overlap = windows[:, 1].astype(np.float32)
                rows = np.insert(np.delete(windows, 1, axis=1), 0, len(images), axis=1).astype(np.int32)
                above = overlap >= np.float32(fg_threshold)
                below = ~above & (overlap < np.float32(bg_threshold))
                if (rows[above, 1] < 1).any():
                    raise words.error(f"image {index} has a foreground window of class 0, which is the background's")
                rows[below, 1] = 0
                foreground.append(rows[above])
                background.append(rows[below])
                images.append(root_folder + path)
                if index % LOG_INTERVAL == 0:
                    log.windows_of_image(index, images[-1], shape, len(windows))
    except OSError as problem:
        raise DataError(f'cannot read the window file "{source}": {problem.strerror}') from problem
    if not images:
        raise DataError(f'the window file "{source}" is empty')
    sorted_windows = WindowFile(images, np.concatenate(foreground), np.concatenate(background))
    labels, counts = np.unique(sorted_windows.foreground[:, 1], return_counts=True)
    samples = {0: len(sorted_windows.background), **dict(zip(labels.tolist(), counts.tolist(), strict=True))}
    log.windows_read(index + 1, samples)
    return sorted_windows


def _read_image(words: _Words) -> tuple[int, str, tuple[int, int, int], np.ndarray] | None:
    """Read the next image: index, path, shape and windows; None at the end."""
    mark = words.maybe()
    if mark is None:
        return None
    if mark != b"#":
        found = repr(mark[:20])[2:-1]
        raise words.error(f'"{found}" stands where "#" should begin an image')
    (index,) = words.integers(1)
    path = words.take(1)[0].decode(errors="surrogateescape")
    channels, height, width, count = words.integers(4)
    if channels != CHANNELS or count < 0:
        raise words.error(f"image {index} has {channels} channels and {count} windows; it needs 3 and at least 0")
    return index, path, (channels, height, width), words.windows(count)


class _Words:
    """The words of a file. Errors name the line."""

    def __init__(self, source: str, file: IO[bytes]) -> None:
        self.source = source
        self._number = 0
        self._words = itertools.chain.from_iterable(self._lines(file))

    def error(self, message: str) -> DataError:
        return DataError(f"{self.source}:{self._number}: {message}")

    def maybe(self) -> bytes | None:
        """The next word, or None at the end."""
        return next(self._words, None)

    def take(self, count: int) -> list[bytes]:
        """The next `count` words."""
        taken = list(itertools.islice(self._words, count))
        if len(taken) < count:
            raise self.error("the file ends in the middle of an image")
        return taken

    def integers(self, count: int) -> list[int]:
        try:
            return [int(word) for word in self.take(count)]
        except ValueError as problem:
            raise self.error("a whole number is wanted") from problem

    def windows(self, count: int) -> np.ndarray:
        """The next count x FIELDS numbers, integers except the overlap."""
        words = self.take(count * FIELDS)
        try:
            table = np.fromiter(map(float, words), np.float64, len(words)).reshape(count, FIELDS)
        except ValueError as problem:
            raise self.error("a window is six numbers: class, overlap, x1, y1, x2, y2") from problem
        whole = np.delete(table, 1, axis=1)
        if not (np.abs(whole) < LARGEST).all() or (whole != np.floor(whole)).any():
            raise self.error("class and corners of a window must be whole numbers")
        return table

    def _lines(self, file: IO[bytes]) -> Iterator[list[bytes]]:
        for number, line in numbered_lines(file, self.source):
            self._number = number
            yield line.split()


class Crop(NamedTuple):
    """The part of an image, the size that it is warped to, and its offset in the output."""

    x1: int
    y1: int
    x2: int
    y2: int
    height: int
    width: int
    top: int
    left: int


def crop_window(
    window: Window, height: int, width: int, crop_size: int, context_pad: int, square: bool, mirror: bool
) -> Crop:
    """The crop of a window in an image of this height and width, in Caffe's float32 arithmetic.

    With `square` the window first becomes square. With `context_pad` it grows, so that its surroundings fill that many
    pixels on each side of the output. Raises DataError for a window outside of the image.
    """
    x1, y1, x2, y2 = window[2:]
    out_height = out_width = crop_size
    top = left = 0
    if context_pad > 0 or square:
        scale = np.float32(crop_size) / np.float32(crop_size - 2 * context_pad)
        half_height, half_width = (np.float32(size) / np.float32(2) for size in (y2 - y1 + 1, x2 - x1 + 1))
        center_x, center_y = np.float32(x1) + half_width, np.float32(y1) + half_height
        if square:
            half_height = half_width = max(half_height, half_width)
        x1, x2 = _round(center_x - half_width * scale), _round(center_x + half_width * scale)
        y1, y2 = _round(center_y - half_height * scale), _round(center_y + half_height * scale)
        scale_x, scale_y = (np.float32(crop_size) / np.float32(size) for size in (x2 - x1 + 1, y2 - y1 + 1))
        pad_x1, pad_y1 = max(0, -x1), max(0, -y1)
        pad_x2, pad_y2 = max(0, x2 - width + 1), max(0, y2 - height + 1)
        x1, x2, y1, y2 = x1 + pad_x1, x2 - pad_x2, y1 + pad_y1, y2 - pad_y2
        top = _round(np.float32(pad_y1) * scale_y)
        left = _round(np.float32(pad_x2 if mirror else pad_x1) * scale_x)
        out_height = min(_round(np.float32(y2 - y1 + 1) * scale_y), crop_size - top)
        out_width = min(_round(np.float32(x2 - x1 + 1) * scale_x), crop_size - left)
    inside = 0 <= x1 <= x2 < width and 0 <= y1 <= y2 < height
    if not inside or out_height < 1 or out_width < 1:
        raise DataError(f"{window} does not lie in the image, which has {height} x {width} pixels (height x width)")
    return Crop(x1, y1, x2, y2, out_height, out_width, top, left)


def warp(image: np.ndarray, crop: Crop, mirror: bool) -> np.ndarray:
    """The pixels of a crop: channels x crop.height x crop.width."""
    part = image[:, crop.y1 : crop.y2 + 1, crop.x1 : crop.x2 + 1]
    resized = resize_image(part, crop.height, crop.width)
    return resized[:, :, ::-1] if mirror else resized


def _round(value: float) -> int:
    """Round to the nearest integer, halves away from 0, as C does."""
    return int(math.copysign(math.floor(abs(float(value)) + 0.5), value))
