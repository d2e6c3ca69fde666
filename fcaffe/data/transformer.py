"""The transformations of a `transform_param`: crop, mirror, subtract the mean, scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fcaffe import log
from fcaffe.data.augmentation import Resize
from fcaffe.data.images import Color
from fcaffe.data.mean import read_mean
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom

ROUNDING = 0.01  # of the sum of probabilities


class Decision(NamedTuple):
    """The random decisions for an image: whether it is mirrored, the draws for the offsets of the crop, and the seed
    of the augmentations."""

    mirror: int
    row: int
    column: int
    seed: int


class Transformer:
    """Transforms images to mirror(crop(image) - crop(mean)) * scale, in float32.

    Crops are random in phase TRAIN and central in TEST. Its own generator draws the decisions for one image after the
    other, in Caffe's order: mirror, row, column. SSD's resizing comes before the crop (`augment`).

    Args:
        seeds: whether other augmentations need a seed for each image.
    """

    def __init__(self, param: Any, phase: int, seeds: bool = False) -> None:
        if param.mean_file and param.mean_value:
            raise DataError("transform_param has both mean_file and mean_value: give one of them")
        if param.force_color and param.force_gray:
            raise DataError("transform_param has both force_color and force_gray: give one of them")
        self.crop_size: int = param.crop_size
        self.crop = (param.crop_h, param.crop_w) if param.crop_h and param.crop_w else (param.crop_size,) * 2
        self.resizes = [Resize(one) for one in param.resize_param]
        self.shares = np.cumsum([one.prob for one in param.resize_param])  # of images that get one of the first resizes
        if len(self.resizes) > 1 and abs(self.shares[-1] - 1) > ROUNDING:
            raise DataError(f"the prob of several resize_param must add up to 1, not {self.shares[-1]:g}")
        chooses = len(self.resizes) > 1 or any(resize.is_random for resize in self.resizes)
        self.seeds = seeds or chooses
        self.mirror: bool = param.mirror
        self.scale = np.float32(param.scale)
        self.random_crop = bool(self.crop[0]) and phase == pb.TRAIN
        self.random: CaffeRandom | None = None
        self.color = Color.COLOR if param.force_color else Color.GRAY if param.force_gray else Color.AS_STORED
        self.mean: np.ndarray | None = None
        self.mean_file: str = param.mean_file
        if param.mean_file:
            log.loading_mean(param.mean_file)
            mean = read_mean(param.mean_file).transpose(1, 2, 0)
            self.mean = np.ascontiguousarray(mean).transpose(2, 0, 1)  # channels-last, as are decoded pictures
        elif param.mean_value:
            self.mean = np.array(param.mean_value, np.float32).reshape(-1, 1, 1)

    @property
    def needs_random(self) -> bool:
        return self.mirror or self.random_crop or self.seeds

    def seed(self, random: CaffeRandom) -> None:
        """Seed the generator with one draw of `random`, if there is anything random."""
        if self.needs_random:
            self.random = CaffeRandom(random.draw())

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """The shape of a transformed image. Raises DataError if crop or mean do not fit."""
        channels, height, width = shape
        crop_height, crop_width = self.crop
        if crop_height > height or crop_width > width:
            size = self.crop_size or f"{crop_height} x {crop_width}"
            raise DataError(
                f"transform_param.crop_size {size} is larger than the images, which are {height} x {width} "
                "(height x width)"
            )
        if self.mean is not None:
            if self.mean_file and self.mean.shape != shape:
                raise DataError(f'mean file "{self.mean_file}" has the shape {self.mean.shape}, the images {shape}')
            if not self.mean_file and len(self.mean) not in (1, channels):
                raise DataError(
                    f"transform_param has {len(self.mean)} mean_value, but the images have {channels} channel(s): "
                    "give 1 or as many as channels"
                )
        return (channels, crop_height or height, crop_width or width)

    def transform(self, images: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Write images (channels x height x width, uint8 or float32) to `out` (N x C x H x W, float32, any strides)."""
        for image, decision, part in zip(images, self.decide(len(images)), out, strict=True):
            self.apply(image, decision, part)

    def decide(self, count: int) -> list[Decision]:
        """Draw the decisions for the next `count` images."""
        decisions = np.zeros((count, 4), np.int64)
        chosen = [0] * self.mirror + [1, 2] * self.random_crop + [3] * self.seeds
        if chosen:
            assert self.random is not None, "seed() comes first"
            decisions[:, chosen] = self.random.draws(count * len(chosen)).reshape(count, -1)
            decisions[:, 0] %= 2
        return [Decision(*row) for row in decisions.tolist()]

    def resize(self, decision: Decision) -> Resize | None:
        """The resizing of an image: one of several by their probabilities."""
        if len(self.resizes) < 2:
            return self.resizes[0] if self.resizes else None
        drawn = float(CaffeRandom(decision.seed).uniform(0, 1, 1)[0])
        return self.resizes[min(int(np.searchsorted(self.shares, drawn)), len(self.resizes) - 1)]

    def augment(self, image: np.ndarray, decision: Decision) -> np.ndarray:
        """The image, resized as `transform_param` says. Thread-safe."""
        resize = self.resize(decision)
        if resize is None:
            return image
        if image.dtype != np.uint8:
            raise DataError("transform_param.resize_param works on images of bytes, not of float_data")
        return resize.apply(image.transpose(1, 2, 0), CaffeRandom(decision.seed)).transpose(2, 0, 1)

    def window(self, shape: tuple[int, ...], decision: Decision) -> tuple[slice, slice]:
        """Rows and columns of the crop of an image of this shape (channels x height x width). Raises DataError if crop
        or mean do not fit."""
        self.output_shape(shape)
        _, height, width = shape
        return self._slice(height, self.crop[0], decision.row), self._slice(width, self.crop[1], decision.column)

    def apply(self, image: np.ndarray, decision: Decision, out: np.ndarray) -> None:
        """Write one transformed image to `out`. Thread-safe."""
        mean = self.mean
        if self.crop[0]:
            rows, columns = self.window(image.shape, decision)
            image = image[:, rows, columns]
            if self.mean_file and mean is not None:
                mean = mean[:, rows, columns]
        if decision.mirror:
            out = out[:, :, ::-1]
        if mean is not None:
            np.subtract(image, mean, out=out, dtype=np.float32)
            if self.scale != 1:
                out *= self.scale
        else:
            np.multiply(image, self.scale, out=out, dtype=np.float32)

    def _slice(self, size: int, crop: int, draw: int) -> slice:
        room = size - crop if crop else 0
        start = draw % (room + 1) if self.random_crop else room // 2
        return slice(start, start + (crop or size))
