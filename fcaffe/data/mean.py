"""Mean images: computed, as by Caffe's compute_image_mean, and read from and converted to `mean.binaryproto` files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data.database import Record
from fcaffe.data.datum import datum_to_array, parse_datum
from fcaffe.errors import DataError, SnapshotError
from fcaffe.input_files import require_file
from fcaffe.proto import StoredBlob
from fcaffe.proto.binary import read_blob
from fcaffe.proto.blobs import stored_to_proto


def read_mean(path: str) -> np.ndarray:
    """Read the mean image of a BlobProto file: float32, channels x height x width. Raises DataError."""
    try:
        require_file(path)
        blob = read_blob(path)
    except (SnapshotError, OSError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise DataError(f'transform_param.mean_file "{path}": {reason}') from problem
    if blob.data is None or len(blob.shape) < 3 or math.prod(blob.shape[:-3]) != 1:
        raise DataError(f'mean file "{path}" is not one image: its values have the shape {blob.shape}')
    return np.asarray(blob.data, np.float32).reshape(blob.shape[-3:])


MOST_BYTES = 1 << 24  # whose sum fits into 32 bits


class Mean:
    """The pixelwise mean of `count` arrays of one shape, channels x height x width."""

    def __init__(self) -> None:
        self.count = 0
        self.total: Any = np.zeros(())
        self._bytes: Any = np.zeros(())  # the part of uint8 images that `total` does not have yet

    @property
    def shape(self) -> tuple[int, ...]:
        return self.total.shape

    def add(self, image: np.ndarray) -> None:
        """Add an array. Raises DataError for another shape than before."""
        if not self.count:
            self.total, self._bytes = np.zeros(image.shape, np.float64), np.zeros(image.shape, np.uint32)
        if image.shape != self.shape:
            raise DataError(f"a mean needs images of one shape, not {self.shape} and {image.shape}")
        if image.dtype == np.uint8:
            self._bytes += image  # in half of the time
        else:
            self.total += image
        self.count += 1
        if self.count % MOST_BYTES == 0:
            self._collect()

    def result(self) -> np.ndarray:
        """The mean, float32. Raises DataError if there are no arrays."""
        if not self.count:
            raise DataError("no images to take the mean of")
        self._collect()
        return (self.total / self.count).astype(np.float32)

    def _collect(self) -> None:
        self.total += self._bytes
        self._bytes[...] = 0


def mean_image(images: Iterable[np.ndarray]) -> np.ndarray:
    mean = Mean()
    for image in images:
        mean.add(image)
    return mean.result()


def mean_to_blob(mean: np.ndarray) -> Any:
    """The BlobProto of a mean image, with num, channels, height and width as compute_image_mean writes them."""
    return stored_to_proto(StoredBlob((1, *mean.shape), np.asarray(mean, np.float32)[np.newaxis], legacy=True))


REPORT = 10000  # records between two log lines


def images_of(records: Iterable[Record]) -> Iterator[np.ndarray]:
    """Yields the images of records, with the log lines of compute_image_mean."""
    count = 0
    for key, value in records:
        datum = parse_datum(key, value)
        if count == 0:
            if datum.encoded:
                log.decoding_datum()
            log.starting_iteration()
        yield datum_to_array(datum, key)
        count += 1
        if count % REPORT == 0:
            log.added_up(count)
    if count % REPORT:
        log.all_added_up(count)
