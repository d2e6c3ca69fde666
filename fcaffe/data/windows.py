"""Window files (of R-CNN): images with labelled boxes, the crop and warp of a box to the net's input, and batches."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fcaffe import log
from fcaffe.data.batches import ImageBatches
from fcaffe.data.images import Color, decode_image, read_file, resize_image
from fcaffe.data.lines import numbered_lines
from fcaffe.data.prefetch import Batch
from fcaffe.data.transformer import Decision, Transformer
from fcaffe.errors import DataError
from fcaffe.rng import CaffeRandom

CHANNELS = 3  # images are read in colour
LOG_INTERVAL = 100  # images
HEAD = 7  # words of an image: #, index, path, channels, height, width, number of windows
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
    for number, index, path, shape, windows in _read_images(source):
        overlap = windows[:, 1].astype(np.float32)
        rows = np.insert(np.delete(windows, 1, axis=1), 0, len(images), axis=1).astype(np.int32)
        above = overlap >= np.float32(fg_threshold)
        below = ~above & (overlap < np.float32(bg_threshold))
        if (rows[above, 1] < 1).any():
            raise DataError(
                f"{source}:{number}: image {index} has a foreground window of class 0, which is the background's"
            )
        rows[below, 1] = 0
        foreground.append(rows[above])
        background.append(rows[below])
        images.append(root_folder + path)
        if index % LOG_INTERVAL == 0:
            log.windows_of_image(index, images[-1], shape, len(windows))
    sorted_windows = WindowFile(images, np.concatenate(foreground), np.concatenate(background))
    labels, counts = np.unique(sorted_windows.foreground[:, 1], return_counts=True)
    samples = {0: len(sorted_windows.background), **dict(zip(labels.tolist(), counts.tolist(), strict=True))}
    log.windows_read(index + 1, samples)
    return sorted_windows


def _read_images(source: str) -> Iterator[tuple[int, int, str, tuple[int, int, int], np.ndarray]]:
    """Yields the last line, index, path, shape and windows of each image in a file. Raises DataError with the line."""
    words = ((number, word) for number, line in numbered_lines(source, "window file") for word in line.split())
    number = 0

    def take(count: int) -> list[bytes]:
        nonlocal number
        taken = list(itertools.islice(words, count))
        number = taken[-1][0] if taken else number
        if len(taken) < count:
            raise ValueError("the file ends in the middle of an image")
        return [word for _, word in taken]

    try:
        for number, mark in words:
            if mark != b"#":
                raise ValueError(f'"{repr(mark[:20])[2:-1]}" stands where "#" should begin an image')
            first, path, *others = take(HEAD - 1)
            index, channels, height, width, count = _integers([first, *others])
            if channels != CHANNELS or count < 0:
                raise ValueError(
                    f"image {index} has {channels} channels and {count} windows; it needs 3 and at least 0"
                )
            windows = _windows(take(FIELDS * count))
            yield number, index, os.fsdecode(path), (channels, height, width), windows
    except ValueError as problem:
        raise DataError(f"{source}:{number}: {problem}") from problem


def _integers(words: list[bytes]) -> list[int]:
    try:
        return [int(word) for word in words]
    except ValueError as problem:
        raise ValueError("a whole number is wanted") from problem


def _windows(words: list[bytes]) -> np.ndarray:
    """Windows as rows of FIELDS numbers, integers except the overlap."""
    try:
        table = np.array(words, np.float64).reshape(-1, FIELDS)
    except ValueError as problem:
        raise ValueError("a window is six numbers: class, overlap, x1, y1, x2, y2") from problem
    whole = np.delete(table, 1, axis=1)
    if not (np.abs(whole) < LARGEST).all() or (whole != np.floor(whole)).any():
        raise ValueError("class and corners of a window must be whole numbers")
    return table


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


def _round(value: float) -> int:
    """Round to the nearest integer, halves away from 0, as C does."""
    return int(math.copysign(math.floor(abs(float(value)) + 0.5), value))


class WindowBatches(ImageBatches[tuple[Window, bool]]):
    """A BatchSource for a WindowDataParameter: background windows first, then floor(batch_size * fg_fraction) others.

    As in Caffe, its own generator draws for each window its index, and then whether it is mirrored. Pixels outside of
    the image are 0. `scale` is that of window_data_param, the mean that of the transformer.
    """

    def __init__(self, param: Any, transformer: Transformer, random: CaffeRandom) -> None:
        super().__init__(transformer, param.batch_size)
        self.param = param
        self.scale = np.float32(param.scale)
        crop_size = transformer.crop_size
        if crop_size < 1:
            raise DataError("transform_param.crop_size must be positive: it is the size of the windows in the net")
        if 2 * param.context_pad >= crop_size:
            raise DataError(
                f"window_data_param.context_pad {param.context_pad} leaves nothing of crop_size {crop_size}"
            )
        log.window_data(
            param.fg_threshold, param.bg_threshold, param.fg_fraction, param.cache_images, param.root_folder
        )
        self.random = CaffeRandom(random.draw())
        self.file = read_window_file(param.source, param.root_folder, param.fg_threshold, param.bg_threshold)
        for kind, windows in (("foreground", self.file.foreground), ("background", self.file.background)):
            if not len(windows):
                raise DataError(f'the window file "{param.source}" has no {kind} windows by these thresholds')
        self.square = param.crop_mode == "square"
        if param.crop_mode not in ("square", "warp"):
            log.warning(f'crop_mode "{param.crop_mode}" is neither warp nor square; it counts as warp, as in Caffe')
        log.window_crops(param.context_pad, param.crop_mode)
        self.shape = (param.batch_size, CHANNELS, crop_size, crop_size)
        self._mean = self._mean_of_crop(crop_size)
        self._files = [read_file(path) for path in self.file.images] if param.cache_images else None
        self._drawn = 0

    @property
    def position(self) -> int:
        return self._drawn

    def take(self, count: int) -> list[tuple[Window, bool]]:
        """Draw windows, each with whether it is mirrored."""
        return [self._draw() for _ in range(count)]

    def load(self, item: tuple[Window, bool]) -> tuple[np.ndarray, int]:
        window, _ = item
        path = self.file.images[window.image]
        content = self._files[window.image] if self._files is not None else read_file(path)
        return decode_image(content, f'"{path}"', Color.COLOR), window.label

    def name(self, item: tuple[Window, bool]) -> str:
        return f'"{self.file.images[item[0].image]}"'

    def state(self) -> tuple[int, bytes]:
        return self._drawn, self.random.state()

    def set_state(self, position: int, random: bytes) -> None:
        self._drawn = position
        self.random.set_state(random)

    def _draw(self) -> tuple[Window, bool]:
        total = self.share.total
        foreground = int(np.float32(total) * np.float32(self.param.fg_fraction))
        is_background = self._drawn % total < total - foreground
        windows = self.file.background if is_background else self.file.foreground
        window = Window(*windows[self.random.draw() % len(windows)].tolist())
        self._drawn += 1
        return window, self.transformer.mirror and self.random.draw() % 2 == 1

    def _transform(self, items: list[tuple[Window, bool]], decisions: list[Decision], batch: Batch) -> None:
        batch.reshape(self.shape)
        batch.data[...] = 0
        batch.labels[...] = [window.label for window, _ in items]
        self.decoders.each(lambda index: self._write(items[index], batch.data[index]), len(items))

    def _write(self, item: tuple[Window, bool], out: np.ndarray) -> None:
        (image, _), (window, mirror) = self.load(item), item
        _, height, width = image.shape
        crop_size, context_pad = self.transformer.crop_size, self.param.context_pad
        try:
            crop = crop_window(window, height, width, crop_size, context_pad, self.square, mirror)
        except DataError as problem:
            raise DataError(f"{problem} ({self.name(item)})") from problem
        part = np.s_[:, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
        mean = self._mean[part] if self._mean.shape[1:] != (1, 1) else self._mean
        pixels = resize_image(image[:, crop.y1 : crop.y2 + 1, crop.x1 : crop.x2 + 1], crop.height, crop.width)
        np.subtract(pixels[:, :, ::-1] if mirror else pixels, mean, out=out[part], dtype=np.float32)
        out[part] *= self.scale

    def _mean_of_crop(self, crop_size: int) -> np.ndarray:
        """The mean to subtract: the mean values, 0, or the middle of the mean image.

        As in Caffe, the width gives the offset of the middle, for the height as well.
        """
        mean = self.transformer.mean
        if mean is None:
            return np.zeros((1, 1, 1), np.float32)
        if len(mean) not in (1, CHANNELS) or (self.transformer.mean_file and len(mean) != CHANNELS):
            raise DataError(f"the mean has {len(mean)} channels, the images {CHANNELS}")
        if not self.transformer.mean_file:
            return mean
        start = (mean.shape[2] - crop_size) // 2
        if start < 0 or start + crop_size > mean.shape[1]:
            raise DataError(f"the mean image of shape {mean.shape} is too small for crop_size {crop_size}")
        return mean[:, start : start + crop_size, start : start + crop_size]
