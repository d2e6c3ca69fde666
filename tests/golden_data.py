"""The databases that the golden training runs read, made from the MNIST test images as their recipe says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fcaffe.data import array_to_datum, write_lmdb
from fcaffe.data.raw_images import read_idx

GOLDEN = Path(__file__).parent / "golden"
TRAIN_RECORDS = 8000
STEP = 7919


def make_mnist_lmdbs(folder: Path) -> None:
    """Write `folder`/train_lmdb (8000 records) and `folder`/test_lmdb (2000 records)."""
    images = read_idx(GOLDEN / "mnist" / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(GOLDEN / "mnist" / "t10k-labels-idx1-ubyte.gz")
    order = np.arange(len(images)) * STEP % len(images)
    write_lmdb(str(folder / "train_lmdb"), _records(images, labels, order[:TRAIN_RECORDS]))
    write_lmdb(str(folder / "test_lmdb"), _records(images, labels, order[TRAIN_RECORDS:]))


def _records(images: np.ndarray, labels: np.ndarray, order: np.ndarray) -> Iterator[tuple[bytes, bytes]]:
    for key, index in enumerate(order):
        yield b"%08d" % key, array_to_datum(images[index][np.newaxis], labels[index]).SerializeToString()
