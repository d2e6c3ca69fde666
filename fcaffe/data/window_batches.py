"""Batches of random windows of images, some of foreground and the others of background."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data.batches import ImageBatches
from fcaffe.data.images import Color, decode_image, read_file
from fcaffe.data.prefetch import Batch
from fcaffe.data.transformer import Decision, Transformer
from fcaffe.data.windows import CHANNELS, Window, crop_window, read_window_file, warp
from fcaffe.errors import DataError
from fcaffe.rng import CaffeRandom


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
        np.subtract(warp(image, crop, mirror), mean, out=out[part], dtype=np.float32)
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
