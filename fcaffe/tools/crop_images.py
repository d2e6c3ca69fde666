"""Resizes and crops pictures to one square size, as Caffe's resize_and_crop_images.py does with OpenCV."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fcaffe import log
from fcaffe.data.images import Color, decode_image, encode_image, opencv, read_file, resize_image
from fcaffe.errors import DataError


def crop_images(names: Sequence[str], source: str, target: str, side: int, threads: int) -> Iterator[bool]:
    """Write each picture of the folder `source` to the same path in `target`, `side` pixels high and wide.

    Yields, in the order of the names, whether each could be read. Unreadable pictures are logged and skipped.
    """
    opencv()  # raises if it is missing
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(
            lambda name: _crop_file(os.path.join(source, name), os.path.join(target, name), side), names
        )


def crop_image(pixels: np.ndarray, side: int) -> np.ndarray:
    """The middle square of pixels (C, H, W) after a resize of the shorter edge to `side`."""
    _, height, width = pixels.shape
    shorter = min(height, width)
    height, width = side * height // shorter, side * width // shorter
    top, left = (height - side) // 2, (width - side) // 2
    return resize_image(pixels, height, width)[:, top : top + side, left : left + side]


def _crop_file(source: str, target: str, side: int) -> bool:
    try:
        pixels = decode_image(read_file(source), f'"{source}"', Color.COLOR)
    except DataError as problem:
        log.warning(str(problem))
        return False
    content = encode_image(crop_image(pixels, side), os.path.splitext(target)[1].lstrip("."))
    try:
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)
    except OSError as problem:
        raise DataError(f"cannot write {target}: {problem.strerror}") from problem
    return True
