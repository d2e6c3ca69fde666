"""Files of raw images and their labels: MNIST's idx files, and the batches of CIFAR-10's binary version."""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from fcaffe.data.database import Record
from fcaffe.data.datum import array_to_datum
from fcaffe.errors import DataError
from fcaffe.input_files import open_packed, read_promised

UNSIGNED_BYTE = 8
CIFAR_SHAPE = (3, 32, 32)  # red, green, blue
CIFAR_RECORD = 1 + 3 * 32 * 32  # label, pixels


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The uint8 array in an idx file: a big-endian header with the shape, then the values. The file may be gzipped."""
    try:
        with open_packed(path) as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] != UNSIGNED_BYTE:
                raise DataError(f"{path} is not an idx file of unsigned bytes")
            axes = head[3]
            sizes = file.read(4 * axes)
            shape = struct.unpack(f">{axes}I", sizes) if len(sizes) == 4 * axes else ()
            values = read_promised(file, math.prod(shape) if shape else 0)
    except (OSError, EOFError, zlib.error) as problem:
        raise DataError(f"cannot read {path}: {problem}") from problem
    if not shape or values is None:
        raise DataError(f"{path} is cut short or damaged: it does not hold the values of the shape {shape}")
    return np.frombuffer(values, np.uint8).reshape(shape)


def read_mnist(images_file: str, labels_file: str) -> tuple[np.ndarray, np.ndarray]:
    """The images (N, 1, H, W) and their labels in two idx files. Raises DataError."""
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(f"{images_file} {images.shape} and {labels_file} {labels.shape} do not go together")
    return images[:, np.newaxis], labels


def cifar_images(content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The images (N, 3, 32, 32) and labels of a batch of CIFAR-10. Raises DataError, which names the file."""
    if not content or len(content) % CIFAR_RECORD:
        raise DataError(f"{name} has {len(content)} bytes, not a multiple of {CIFAR_RECORD}: fetch it again")
    rows = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
    return rows[:, 1:].reshape(-1, *CIFAR_SHAPE), rows[:, 0]


def image_records(images: np.ndarray, labels: np.ndarray, digits: int, first: int = 0) -> Iterator[Record]:
    """Yields the Datums of images (N, C, H, W). Keys are numbers from `first` on, of so many digits."""
    for key, (image, label) in enumerate(zip(images, labels, strict=True), first):
        yield b"%0*d" % (digits, key), array_to_datum(image, label).SerializeToString()
