"""Conversion between Datum messages and arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe.data.images import Color, decode_image
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb


def parse_datum(key: bytes, value: bytes) -> Any:
    """Parse the Datum of a record. Raises DataError, which names the key."""
    try:
        return pb.Datum.FromString(value)
    except DecodeError as problem:
        raise DataError(f"record {name_of(key)} is not a Datum ({problem})") from problem


def datum_to_array(datum: Any, key: bytes = b"", color: Color = Color.AS_STORED) -> np.ndarray:
    """The image in a Datum: uint8 (or float32 from float_data), channels x height x width, read-only.

    `color` is applied to an encoded image only. Raises DataError.
    """
    data = datum.data
    if datum.encoded:
        return decode_image(data, f"record {name_of(key)}", color)
    values = np.frombuffer(data, np.uint8) if data else np.array(datum.float_data, np.float32)
    shape = (datum.channels, datum.height, datum.width)
    if min(shape) < 1 or values.size != math.prod(shape):
        kind = "bytes of data" if data else "float_data values"
        raise DataError(
            f"record {name_of(key)} has {values.size} {kind}, but channels x height x width are "
            f"{' x '.join(map(str, shape))}: it is damaged or holds no image"
        )
    return values.reshape(shape)


def array_to_datum(array: np.ndarray, label: int | None = None) -> Any:
    """The Datum of a channels x height x width array: uint8 as `data`, other types as `float_data`."""
    if array.ndim != 3:
        raise DataError(f"a Datum holds a channels x height x width array, not the shape {array.shape}")
    datum = pb.Datum()
    datum.channels, datum.height, datum.width = array.shape
    if array.dtype == np.uint8:
        datum.data = array.tobytes()
    else:
        datum.float_data.extend(array.astype(np.float32).ravel().tolist())
    if label is not None:
        datum.label = int(label)
    return datum


def set_labels(datum: Any, labels: Any) -> None:
    """Store an integer as the label, and one or more numbers of other kinds as float_data beside the data."""
    if not isinstance(labels, int):
        datum.float_data.extend(np.ravel(labels).tolist())
    datum.label = int(np.ravel(labels)[0])  # Caffe reads this one


def labels_of(datum: Any) -> np.ndarray:
    """The labels of an image: float_data if there is data too, float32, else the label."""
    return np.array(datum.float_data, np.float32) if datum.data and datum.float_data else np.array([datum.label])


def name_of(key: bytes) -> str:
    """A record's key in quotes, for messages."""
    return f'"{key.decode(errors="backslashreplace")}"'
