"""Encoding, decoding and resizing of pictures (PNG, JPEG, ...) by OpenCV, as in Caffe."""

from __future__ import annotations

import enum
import os
import struct
from typing import Any, NamedTuple

import numpy as np

from fcaffe.errors import DataError
from fcaffe.input_files import read_input

LARGEST_FILE = 1 << 30  # bytes

PNG = b"\x89PNG\r\n\x1a\n"
CHUNK = struct.Struct(">I4s")  # of a PNG: the length of the content, the name
CHECK_SUM = 4  # bytes after each chunk
PNG_START = struct.Struct(">16xIIxB")  # width, height, kind of pixels
JPEG = b"\xff\xd8\xff"
FRAME = struct.Struct(">HHB")  # of a JPEG: height, width, channels
SHORT = struct.Struct(">H")


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
            "reading and writing encoded pictures (JPEG, PNG) needs OpenCV: pip install opencv-python-headless"
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
        is_cut = data.startswith(PNG) and not header_of(data).is_whole  # OpenCV would allocate what a chunk claims
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag) if data and not is_cut else None
    except cv2.error as problem:
        raise DataError(
            f"{what} cannot be decoded as a picture: it is damaged, or has more pixels than OpenCV allows (see "
            "OPENCV_IO_MAX_IMAGE_PIXELS)"
        ) from problem
    if pixels is None:
        damage = damage_of(data) or "no picture of a kind that OpenCV reads, or damaged"
        raise DataError(f"{what} cannot be decoded as a picture ({len(data)} bytes): it is {damage}")
    return pixels


class Header(NamedTuple):
    """The header of a picture file: its size as stored, its channels, and the EXIF orientation (1: upright).

    `is_whole` is whether the file goes on to its end. The sizes are 0 if they are unknown.
    """

    height: int = 0
    width: int = 0
    channels: int = 0
    orientation: int = 1
    is_whole: bool = True


def header_of(data: bytes) -> Header:
    """The header of a JPEG or PNG file; all unknown for other kinds."""
    if data.startswith(PNG):
        return _png_header(data)
    return _jpeg_header(data) if data.startswith(JPEG) else Header()


def damage_of(data: bytes) -> str:
    """What is wrong with a picture file, as far as its bytes show without decoding: "truncated", "empty", or ""."""
    return "empty" if not data else "" if header_of(data).is_whole else "truncated"


def _png_header(data: bytes) -> Header:
    offset, name = len(PNG), b""
    while name != b"IEND" and offset + CHUNK.size <= len(data):
        length, name = CHUNK.unpack_from(data, offset)
        offset += CHUNK.size + length + CHECK_SUM
    is_whole = name == b"IEND" and offset <= len(data)
    if len(data) < PNG_START.size:
        return Header(is_whole=False)
    width, height, kind = PNG_START.unpack_from(data)
    return Header(height, width, {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}.get(kind, 0), 1, is_whole)


def _jpeg_header(data: bytes) -> Header:
    header, offset = Header(is_whole=False), len(JPEG) - 1
    while offset + 4 <= len(data) and data[offset] == 0xFF:
        marker, (length,) = data[offset + 1], SHORT.unpack_from(data, offset + 2)
        if marker == 0xFF:  # a filler
            offset += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and offset + 10 <= len(data):
            height, width, channels = FRAME.unpack_from(data, offset + 5)
            header = header._replace(height=height, width=width, channels=channels)
        elif marker == 0xE1 and data.startswith(b"Exif\0\0", offset + 4):
            header = header._replace(orientation=_orientation(data[offset + 10 : offset + 2 + length]))
        elif marker == 0xDA:  # compressed data follow, in which 0xFF 0xD9 stands at the end only
            return header._replace(is_whole=data.rfind(b"\xff\xd9", offset) > 0)
        offset += 2 + length
    return header


def _orientation(exif: bytes) -> int:
    """The orientation in EXIF data, from 1 (upright) to 8."""
    order = "<" if exif.startswith(b"II") else ">"
    try:
        (start,) = struct.unpack_from(order + "I", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, start)
        for index in range(count):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", exif, start + 2 + 12 * index)
            if tag == 0x0112 and kind == 3 and 1 <= value <= 8:
                return int(value)
    except struct.error:
        pass
    return 1


def read_file(path: str) -> bytes:
    """The bytes of a picture file. Raises DataError."""
    try:
        return read_input(path, LARGEST_FILE)
    except (OSError, ValueError) as problem:  # ValueError: a zero byte in the name
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise DataError(f'cannot read the picture "{path}": {reason}') from problem


def why_no_picture(path: str) -> str:
    """Why a file cannot be a picture, by its beginning, such as "is not there"; "" if OpenCV may read it."""
    if not os.path.isfile(path):
        return "is no file" if os.path.exists(path) else "is not there"
    try:
        with open(path, "rb") as file:  # by its descriptor, since a name may hold bytes that are no text
            is_known = opencv().haveImageReader(f"/dev/fd/{file.fileno()}")
    except OSError as problem:
        return f"cannot be read: {problem.strerror}"
    return "" if is_known else "is no picture of a kind that OpenCV reads"


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
