"""Encoding, decoding and resizing of pictures (PNG, JPEG, ...) by OpenCV, as in Caffe."""

from __future__ import annotations

import enum
import struct
from typing import Any

import numpy as np

from fcaffe.errors import DataError
from fcaffe.input_files import read_input

LARGEST_FILE = 1 << 30  # bytes

PNG = b"\x89PNG\r\n\x1a\n"
CHUNK = struct.Struct(">I4s")  # of a PNG: the length of the content, the name
CHECK_SUM = 4  # bytes after each chunk


class Color(enum.Enum):
    """The channels of a decoded picture. Colours are in OpenCV's order: blue, green, red."""

    AS_STORED = enum.auto()
    COLOR = enum.auto()
    GRAY = enum.auto()


def opencv() -> Any:
    """The cv2 module. Raises DataError, which says what to install, if it is missing."""
    try:
        import cv2
    except ImportError as problem:
        raise DataError(
            "reading and writing encoded pictures (JPEG, PNG) needs OpenCV: pip install 'fcaffe[images]' "
            "(or pip install opencv-python-headless)"
        ) from problem
    return cv2


def decode_image(data: bytes, what: str, color: Color = Color.AS_STORED) -> np.ndarray:
    """Decode a picture to uint8, channels x height x width. Raises DataError, which names the picture by `what`."""
    pixels = decode_pixels(data, what, color)
    if pixels.dtype != np.uint8:
        raise DataError(f"{what} has {pixels.dtype} pixels; only 8-bit pictures are read")
    if pixels.ndim == 2:
        return pixels[np.newaxis]
    return pixels.transpose(2, 0, 1)


def decode_pixels(data: bytes, what: str, color: Color = Color.AS_STORED) -> np.ndarray:
    """Decode a picture as OpenCV does: any type, height x width [x channels]. Raises DataError."""
    cv2 = opencv()
    flag = {
        Color.AS_STORED: cv2.IMREAD_UNCHANGED,
        Color.COLOR: cv2.IMREAD_COLOR,
        Color.GRAY: cv2.IMREAD_GRAYSCALE,
    }[color]
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag) if data and not _is_cut(data) else None
    except cv2.error as problem:
        raise DataError(
            f"{what} cannot be decoded as a picture: it is damaged, or has more pixels than OpenCV allows (see "
            "OPENCV_IO_MAX_IMAGE_PIXELS)"
        ) from problem
    if pixels is None:
        raise DataError(f"{what} cannot be decoded as a picture ({len(data)} bytes)")
    return pixels


def _is_cut(data: bytes) -> bool:
    """Whether a chunk of a PNG is longer than the file. OpenCV would allocate its length first."""
    offset, name = len(PNG), b""
    while data.startswith(PNG) and name != b"IEND" and offset + CHUNK.size <= len(data):
        length, name = CHUNK.unpack_from(data, offset)
        if length > len(data):
            return True
        offset += CHUNK.size + length + CHECK_SUM
    return False


def read_file(path: str) -> bytes:
    """Read a picture file without decoding it. Raises DataError."""
    try:
        return read_input(path, LARGEST_FILE)
    except (OSError, ValueError) as problem:  # ValueError: a zero byte in the name
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise DataError(f'cannot read the picture "{path}": {reason}') from problem


def encode_image(pixels: np.ndarray, extension: str) -> bytes:
    """Encode a channels x height x width uint8 array as a 'jpg', 'png', ... file. Raises DataError."""
    cv2 = opencv()
    try:
        done, data = cv2.imencode(f".{extension}", np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    except cv2.error as problem:
        raise DataError(f'cannot encode a picture as "{extension}": name a format such as jpg or png') from problem
    if not done:
        raise DataError(f'cannot encode a picture as "{extension}"')
    return bytes(data)


def resize_image(pixels: np.ndarray, height: int, width: int, nearest: bool = False) -> np.ndarray:
    """Resize a channels x height x width uint8 array by bilinear interpolation, as convert_imageset does, or to the
    nearest pixel."""
    cv2 = opencv()
    how = cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR
    try:
        resized = cv2.resize(np.ascontiguousarray(pixels.transpose(1, 2, 0)), (width, height), interpolation=how)
    except cv2.error as problem:
        raise DataError(
            f"OpenCV cannot create a picture of {height} x {width} pixels; name a smaller size"
        ) from problem
    return resized[np.newaxis] if resized.ndim == 2 else resized.transpose(2, 0, 1)
