"""Mean images: computed, and read from and converted to blobs of `mean.binaryproto` files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fcaffe.errors import DataError, SnapshotError
from fcaffe.input_files import require_file
from fcaffe.proto import blob_shape, blob_values, read_binary, to_blob_proto
from fcaffe.proto import caffe_pb2 as pb


def read_mean(path: str) -> np.ndarray:
    """Read the mean image of a BlobProto file: float32, channels x height x width. Raises DataError."""
    try:
        require_file(path)
        blob = read_binary(path, pb.BlobProto)
        values, shape = blob_values(blob), blob_shape(blob)
    except (SnapshotError, OSError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise DataError(f'transform_param.mean_file "{path}": {reason}') from problem
    if len(shape) < 3 or math.prod(shape) != values.size or math.prod(shape[:-3]) != 1:
        raise DataError(f'mean file "{path}" is not one image: it has {values.size} value(s) of shape {shape}')
    return values.reshape(shape[-3:])


def mean_image(images: Iterable[np.ndarray]) -> np.ndarray:
    """The pixelwise mean of channels x height x width arrays, float32. Raises DataError for different shapes."""
    total: np.ndarray | None = None
    count = 0
    for image in images:
        if total is None:
            total = np.zeros(image.shape, np.float64)
        if image.shape != total.shape:
            raise DataError(f"a mean needs images of one shape, not {total.shape} and {image.shape}")
        total += image
        count += 1
    if total is None:
        raise DataError("no images to take the mean of")
    return (total / count).astype(np.float32)


def mean_to_blob(mean: np.ndarray) -> Any:
    """The BlobProto of a mean image, with num, channels, height and width as compute_image_mean writes them."""
    blob = to_blob_proto(mean)
    blob.ClearField("shape")
    blob.num = 1
    blob.channels, blob.height, blob.width = mean.shape
    return blob
