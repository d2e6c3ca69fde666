"""pycaffe's `caffe.Detector`: a net that classifies windows of pictures, as R-CNN does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fcaffe.errors import ArgumentError, UsageError
from fcaffe.pycaffe import io
from fcaffe.pycaffe.classifier import first_output, transformer_of
from fcaffe.pycaffe.net import Net
from fcaffe.pycaffe.session import TEST

Window = Sequence[float] | np.ndarray  # ymin, xmin, ymax, xmax


class Detector(Net):
    """A deploy net with its weights, the preprocessing of pictures for its first input, and the crop of windows.

    `context_pad` is the number of pixels at each border of the net's input that show the surroundings of the window.
    """

    def __init__(
        self,
        model_file: str,
        pretrained_file: str,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        context_pad: int | None = None,
    ) -> None:
        super().__init__(model_file, TEST, weights=pretrained_file)
        self.transformer = transformer_of(self, mean, input_scale, raw_scale, channel_swap)
        self.configure_crop(context_pad)

    def detect_windows(self, images_windows: Iterable[tuple[str, Iterable[Window]]]) -> list[dict[str, Any]]:
        """Return a dict of "window", "prediction" and "filename" for each window of each picture file."""
        found: list[dict[str, Any]] = []
        crops = []
        for filename, windows in images_windows:
            image = io.load_image(filename)
            for window in windows:
                found.append({"window": window, "filename": filename})
                crops.append(self.crop(image, window))
        predictions = first_output(self, crops, self.transformer) if crops else np.empty(0)
        return [{**detection, "prediction": values} for detection, values in zip(found, predictions, strict=True)]

    def detect_selective_search(self, image_fnames: Iterable[str]) -> list[dict[str, Any]]:
        """As `detect_windows`, in the windows that Selective Search, a MATLAB program, proposes."""
        try:
            import selective_search_ijcv_with_python as selective_search
        except ImportError as problem:
            raise UsageError(
                "selective search needs MATLAB and the Python module selective_search_ijcv_with_python (from "
                "https://github.com/sergeyk/selective_search_ijcv_with_python, on PYTHONPATH); or give windows of your "
                "own to detect_windows"
            ) from problem
        paths = [os.path.abspath(name) for name in image_fnames]
        windows = selective_search.get_windows(paths, cmd="selective_search_rcnn")
        return self.detect_windows(zip(paths, windows, strict=True))

    def crop(self, im: np.ndarray, window: Window) -> np.ndarray:
        """Return the pixels of a window of a picture (H x W x K); with context, in the size of the net's input.

        Pixels of the context beyond the picture have the mean.
        """
        top, left, bottom, right = (int(edge) for edge in window)
        rows, columns = im.shape[:2]
        least = 0 if self.context_pad else 1
        if min(top, left) < 0 or top >= rows or left >= columns or min(bottom - top, right - left) < least:
            raise ArgumentError(
                f"the window {[top, left, bottom, right]} (ymin, xmin, ymax, xmax) is empty in a picture of {rows} x "
                f"{columns}"
            )
        if not self.context_pad:
            return im[top:bottom, left:right]
        size = self.blobs[self.inputs[0]].width  # of a square input, as Caffe has it
        half = np.array([bottom - top + 1, right - left + 1]) / 2
        centre = np.array([top, left]) + half
        scaled = half * (size / (size - 2 * self.context_pad))
        first, last = np.round(centre - scaled), np.round(centre + scaled)
        scale = size / (last - first + 1)  # pixels of the input for each of the picture
        pad_y, pad_x = (round(beyond) for beyond in np.maximum(0, -first) * scale)
        first, last = np.clip(first, 0, [rows, columns]), np.clip(last, 0, [rows, columns])
        crop_h, crop_w = (round(extent) for extent in (last - first + 1) * scale)
        crop_h, crop_w = min(crop_h, size - pad_y), min(crop_w, size - pad_x)
        (y, x), (y_end, x_end) = first.astype(int), last.astype(int)
        made = np.ones(self.crop_dims, np.float32) * self.crop_mean
        made[pad_y : pad_y + crop_h, pad_x : pad_x + crop_w] = io.resize_image(im[y:y_end, x:x_end], (crop_h, crop_w))
        return made

    def configure_crop(self, context_pad: int | None) -> None:
        """Set the pixels of context for `crop`, and compute the mean (H x W x K) in the layout of pictures."""
        name, transformer = self.inputs[0], self.transformer
        back = np.argsort(transformer.transpose[name])
        shape = self.blobs[name].data.shape
        self.crop_dims = np.array(shape[1:])[back]
        self.context_pad = context_pad
        if not context_pad:
            return
        if 2 * context_pad >= shape[3] or shape[2] != shape[3]:
            raise ArgumentError(
                f"context_pad {context_pad} at each border does not fit the net's input of {shape[2]} x {shape[3]}, "
                "which should be square"
            )
        mean = transformer.mean.get(name)
        if mean is None:
            self.crop_mean = np.zeros(self.crop_dims, np.float32)
            return
        made = (mean if mean.ndim == 3 else mean[np.newaxis]).transpose(back)
        if name in transformer.channel_swap:
            made = made[:, :, np.argsort(transformer.channel_swap[name])]
        scale = transformer.raw_scale.get(name)
        self.crop_mean = made.copy() if scale is None else made / scale
