"""Boxes as NumPy arrays: overlaps, codes relative to priors, non-maximum suppression.

A box is a row (xmin, ymin, xmax, ymax), an array of boxes (..., 4). SSD's corners are fractions of the image's width
and height. With `pixels` they are whole pixels and the last one belongs to the box, so sides are one longer. Sequential
work such as suppression would leave a GPU idle, so boxes are handled on the host.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from fcaffe.proto import caffe_pb2 as pb

CORNER, CENTER_SIZE, CORNER_SIZE = (
    getattr(pb.PriorBoxParameter, name) for name in ("CORNER", "CENTER_SIZE", "CORNER_SIZE")
)
LEAST = 1e-6  # overlap that counts in `match`
BLOCK = 512  # boxes whose overlaps with one another `suppress` computes at a time


class ImageSize(NamedTuple):
    """An image by the name that files give it, and its size on disk in pixels."""

    name: str
    height: int
    width: int


def areas(boxes: np.ndarray, pixels: bool = False) -> np.ndarray:
    """The areas (...) of boxes (..., 4); 0 for boxes whose corners have the wrong order."""
    width, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    return np.where((width < 0) | (height < 0), np.float32(0), (width + pixels) * (height + pixels))


def intersections(a: np.ndarray, b: np.ndarray, pixels: bool = False) -> np.ndarray:
    """The areas that the boxes a and b (..., 4), whose shapes broadcast, have in common."""
    sides = (np.minimum(a[..., i + 2], b[..., i + 2]) - np.maximum(a[..., i], b[..., i]) for i in (0, 1))
    width, height = (np.maximum(side + pixels, 0) for side in sides)
    return width * height


def overlaps(a: np.ndarray, b: np.ndarray, pixels: bool = False) -> np.ndarray:
    """Intersection over union (A, B) of each box of a (A, 4) and each of b (B, 4); 0 for boxes that do not meet."""
    common = intersections(a[:, None], b, pixels)
    union = areas(a, pixels)[:, None] + areas(b, pixels) - common
    return np.divide(common, union, out=np.zeros_like(common), where=common > 0)


def coverages(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The share (A, B) of the area of each box of a (A, 4) that is in each box of b (B, 4); 0 for disjoint boxes."""
    common = intersections(a[:, None], b)
    return np.divide(common, areas(a)[:, None], out=np.zeros_like(common), where=common > 0)


def inside(boxes: np.ndarray) -> np.ndarray:
    """Which coordinates (..., 4) are those of a point of the image, as fractions."""
    return (boxes >= 0) & (boxes <= 1)


def encode(boxes: np.ndarray, priors: np.ndarray, variances: np.ndarray | None, code_type: int) -> np.ndarray:
    """The codes (..., 4) of boxes relative to priors, all (..., 4): what a net predicts instead of them.

    CORNER: differences of the corners. CORNER_SIZE: the same in sides of the prior. CENTER_SIZE: difference of the
    centres in sides of the prior, and logarithms of the quotients of the sides. They are divided by the `variances`
    (..., 4); None: not. Boxes and priors without area give no numbers in CENTER_SIZE.
    """
    if code_type == CENTER_SIZE:
        centres, sides = _centres_and_sides(boxes)
        prior_centres, prior_sides = _centres_and_sides(priors)
        codes = np.concatenate([(centres - prior_centres) / prior_sides, np.log(sides / prior_sides)], axis=-1)
    else:
        codes = boxes - priors
        if code_type == CORNER_SIZE:
            codes = codes / np.tile(_centres_and_sides(priors)[1], 2)
    return codes if variances is None else codes / variances


def decode(codes: np.ndarray, priors: np.ndarray, variances: np.ndarray | None, code_type: int) -> np.ndarray:
    """The boxes (..., 4) of which these are the codes; the reverse of `encode`. Codes and priors may broadcast."""
    codes = codes if variances is None else codes * variances
    if code_type == CORNER:
        return priors + codes
    centres, sides = _centres_and_sides(priors)
    if code_type == CORNER_SIZE:
        return priors + codes * np.tile(sides, 2)
    centres = centres + codes[..., :2] * sides
    half = np.exp(codes[..., 2:]) * sides / 2
    return np.concatenate([centres - half, centres + half], axis=-1)


def _centres_and_sides(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low


def match(boxes: np.ndarray, objects: np.ndarray, threshold: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """For each of the boxes (B, 4) the index (B) of the object (G, 4) that it stands for, or -1, and its largest
    overlap (B) with an object.

    Each object gets a box of its own: the pair of the largest overlap is taken first, then that of the others, and so
    on. With a `threshold` each box that is left takes the object of its largest overlap from there on.
    """
    overlap = overlaps(boxes, objects)
    overlap[overlap <= LEAST] = 0
    found = np.full(len(boxes), -1)
    left = overlap.copy()
    for _ in range(len(objects) if len(boxes) else 0):
        box, index = divmod(int(left.argmax()), len(objects))
        if left[box, index] == 0:
            break
        found[box] = index
        left[box] = left[:, index] = 0
    largest = overlap.max(axis=1, initial=0)
    if threshold is not None:
        near = (found < 0) & (largest > 0) & (largest >= np.float32(threshold))
        found[near] = overlap[near].argmax(axis=1)
    return found, largest


def falling(scores: np.ndarray, limit: int = -1) -> np.ndarray:
    """The indices of the highest scores, highest first; of equal ones the first comes first. `limit` < 0: of all."""
    order = np.argsort(-scores, kind="stable")
    return order if limit < 0 else order[:limit]


def suppress(
    boxes: np.ndarray, threshold: float, eta: float = 1, limit: int = sys.maxsize, pixels: bool = False
) -> np.ndarray:
    """The indices of the boxes that non-maximum suppression keeps, at most `limit`.

    `boxes` (B, 4) come with the best first. A box is kept unless it overlaps with a box that was kept by more than the
    threshold, which is multiplied by `eta` after each kept box for as long as it is above 0.5.
    """
    largest = np.full(len(boxes), -1, np.float32)  # overlap with a box that is kept
    kept: list[int] = []
    left = np.arange(len(boxes))
    while len(left) and len(kept) < limit:
        block, left = left[:BLOCK], left[BLOCK:]
        among, found, first = overlaps(boxes[block], boxes[block], pixels), largest[block], len(kept)
        for position, index in enumerate(block):
            if found[position] <= threshold:
                kept.append(index)
                np.maximum(found, among[position], out=found)
                if eta < 1 and threshold > 0.5:
                    threshold = float(np.float32(threshold) * np.float32(eta))
        if len(kept) > first:
            with_new = overlaps(boxes[kept[first:]], boxes[left], pixels).max(axis=0)
            largest[left] = np.maximum(largest[left], with_new)
        left = left[largest[left] <= threshold]
    return np.array(kept[:limit], int)


def in_pixels(boxes: np.ndarray, image: ImageSize, resize: Any) -> np.ndarray:
    """Boxes (..., 4) of fractions of the net's input, in pixels of the image from which `resize` has made the input.

    `resize` is a ResizeParameter. Boxes are cut to the image; NaN becomes 0.
    """
    size = np.array([image.width, image.height] * 2, np.float32)
    if resize.resize_mode == pb.ResizeParameter.FIT_SMALL_SIZE and resize.height_scale and resize.width_scale:
        scale = np.array([resize.width_scale, resize.height_scale] * 2, np.float32)
        return np.nan_to_num(np.clip(boxes * scale, 0, size))
    if resize.resize_mode == pb.ResizeParameter.FIT_LARGE_SIZE_AND_PAD:
        aspect = image.width / image.height * resize.height / resize.width
        used = np.minimum(1, np.array([aspect, 1 / aspect] * 2, np.float32))  # the rest of the input is padding
        low, high = (1 - used) / 2, (1 + used) / 2
        seen = ((boxes[..., :2] < high[:2]) & (boxes[..., 2:] > low[:2])).all(axis=-1, keepdims=True)
        boxes = np.where(seen, (boxes - low) / used, boxes)  # SSD leaves boxes in the padding as they are
    return np.nan_to_num(np.clip(boxes, 0, 1) * size)
