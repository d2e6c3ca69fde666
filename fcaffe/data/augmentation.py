"""SSD's augmentations of pictures: resizing, distorted colours, larger canvases.

Each function takes and returns pixels: height x width x channels, uint8. `random` belongs to one picture, so that the
result depends neither on the thread nor on the worker that computes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe.data.images import opencv
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom

SMALLEST_CHANGE = 1e-3  # of contrast and saturation; anything less leaves the picture as it is


class Resize:
    """Resizes pictures as a ResizeParameter says.

    WARP gives height x width. FIT_SMALL_SIZE retains the aspect ratio and covers height x width.
    FIT_LARGE_SIZE_AND_PAD retains it too, fits into height x width, and pads the rest on both sides.
    """

    def __init__(self, param: Any) -> None:
        if not (param.height and param.width):
            raise DataError("resize_param needs height and width, both above 0")
        if param.height_scale or param.width_scale:
            raise DataError("resize_param.height_scale and width_scale are not supported: remove them")
        if len(param.pad_value) not in (0, 1, 3):
            raise DataError(f"resize_param has {len(param.pad_value)} pad_value: give 1, or one for each channel")
        self.param = param
        self.pads = param.resize_mode == pb.ResizeParameter.FIT_LARGE_SIZE_AND_PAD
        self.is_random = len(param.interp_mode) > 1

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of a resized picture, before padding."""
        p = self.param
        if p.resize_mode == pb.ResizeParameter.WARP:
            return p.height, p.width
        wider = width * p.height > p.width * height
        if wider == self.pads:
            return max(int(p.width * height / width), 1), p.width
        return p.height, max(int(p.height * width / height), 1)

    def apply(self, pixels: np.ndarray, random: CaffeRandom) -> np.ndarray:
        cv2, p = opencv(), self.param
        modes = [pb.ResizeParameter.Interp_mode.Name(mode) for mode in p.interp_mode] or ["LINEAR"]
        mode = modes[random.draw() % len(modes)] if self.is_random else modes[0]
        height, width = self.size(*pixels.shape[:2])
        resized = cv2.resize(np.ascontiguousarray(pixels), (width, height), interpolation=getattr(cv2, f"INTER_{mode}"))
        if self.pads:
            border = {
                pb.ResizeParameter.CONSTANT: cv2.BORDER_CONSTANT,
                pb.ResizeParameter.MIRRORED: cv2.BORDER_REFLECT_101,
                pb.ResizeParameter.REPEAT_NEAREST: cv2.BORDER_REPLICATE,
            }[p.pad_mode]
            value = [*p.pad_value] * (3 // len(p.pad_value)) if p.pad_value else [0, 0, 0]
            top, left = (p.height - height) // 2, (p.width - width) // 2
            bottom, right = p.height - height - top, p.width - width - left
            resized = cv2.copyMakeBorder(resized, top, bottom, left, right, border, value=value)
        return resized.reshape(*resized.shape[:2], -1)  # OpenCV drops the axis of a single channel

    def boxes(self, corners: np.ndarray, height: int, width: int) -> np.ndarray:
        """Relative corners in a picture of height x width, relative to the resized and padded picture."""
        if not self.pads:
            return corners
        p, (inner_height, inner_width) = self.param, self.size(height, width)
        scale = np.array([inner_width / p.width, inner_height / p.height] * 2)
        return corners * scale + (1 - scale) / 2


def distort(pixels: np.ndarray, param: Any, random: CaffeRandom) -> np.ndarray:
    """Change brightness, contrast, saturation, hue and the order of channels, each with its own probability.

    Contrast comes second or fourth, by chance. Colour pictures only.
    """
    early = _happens(0.5, random)
    pixels = _linear(pixels, 1, _drawn(param, "brightness", 0, random))
    if early:
        pixels = _linear(pixels, _drawn(param, "contrast", 1, random), 0)
    saturation, hue = _drawn(param, "saturation", 1, random), _drawn(param, "hue", 0, random)
    if abs(saturation - 1) > SMALLEST_CHANGE or hue:
        cv2 = opencv()
        hsv = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_BGR2HSV)
        hsv[:, :, 1] = _linear(hsv[:, :, 1], saturation, 0)
        hsv[:, :, 0] = _linear(hsv[:, :, 0], 1, hue)
        pixels = np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR))
    if not early:
        pixels = _linear(pixels, _drawn(param, "contrast", 1, random), 0)
    if param.random_order_prob and _happens(param.random_order_prob, random):
        order = [0, 1, 2]
        random.shuffle(order)
        pixels = pixels[:, :, order]
    return pixels


def expand(
    pixels: np.ndarray, param: Any, mean: np.ndarray | None, random: CaffeRandom
) -> tuple[np.ndarray, tuple[float, float, float, float]]:
    """Put the picture somewhere on a canvas up to max_expand_ratio times as large, filled with the mean.

    Args:
        mean: mean values (channels x 1 x 1), or None for 0. Expansion does not work with a mean file.

    Returns:
        The canvas, and its corners (xmin, ymin, xmax, ymax) relative to the picture.
    """
    if param.max_expand_ratio < 1:
        raise DataError(f"expand_param.max_expand_ratio is {param.max_expand_ratio:g}: give 1 or more")
    if not _happens(param.prob, random) or param.max_expand_ratio - 1 < 1e-2:
        return pixels, (0.0, 0.0, 1.0, 1.0)
    height, width, channels = pixels.shape
    ratio = _uniform(1, param.max_expand_ratio, random)
    canvas_height, canvas_width = int(height * ratio), int(width * ratio)
    top = int(_uniform(0, canvas_height - height, random))
    left = int(_uniform(0, canvas_width - width, random))
    canvas = np.zeros((canvas_height, canvas_width, channels), np.uint8)
    if mean is not None:
        canvas[...] = mean.reshape(-1).astype(np.uint8)
    canvas[top : top + height, left : left + width] = pixels
    corners = (-left / width, -top / height, (canvas_width - left) / width, (canvas_height - top) / height)
    return canvas, corners


def _uniform(low: float, high: float, random: CaffeRandom) -> float:
    if high < low:
        raise DataError(f"transform_param: a random number from [{low:g}, {high:g}] is wanted; swap the two limits")
    return float(random.uniform(low, high, 1)[0])


def _happens(probability: float, random: CaffeRandom) -> bool:
    return _uniform(0, 1, random) < probability


def _drawn(param: Any, what: str, unchanged: float, random: CaffeRandom) -> float:
    """A random value between the limits of a distortion, with its probability, else `unchanged`."""
    if not _happens(getattr(param, f"{what}_prob"), random):
        return unchanged
    if unchanged:
        return _uniform(getattr(param, f"{what}_lower"), getattr(param, f"{what}_upper"), random)
    delta = getattr(param, f"{what}_delta")
    return _uniform(-delta, delta, random)


def _linear(values: np.ndarray, factor: float, offset: float) -> np.ndarray:
    """values * factor + offset, rounded and limited to 0..255."""
    if abs(factor - 1) <= SMALLEST_CHANGE and offset == 0:
        return values
    return np.clip(np.rint(values * np.float32(factor) + np.float32(offset)), 0, 255).astype(np.uint8)
