"""The idx format of the MNIST files: a big-endian header with the shape, then unsigned bytes; plain or gzipped."""

from __future__ import annotations

import gzip
import os
import struct
import zlib

import numpy as np

from fcaffe.errors import DataError
from fcaffe.input_files import read_input

UNSIGNED_BYTE = 8


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The uint8 array in an idx file."""
    try:
        content = read_input(path)
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as problem:
        raise DataError(f"cannot read {path}: {problem}") from problem
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise DataError(f"{path} is not an idx file of unsigned bytes")
    axes = content[3]
    start = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", content[4:start]) if len(content) >= start else ()
    values = np.frombuffer(content, np.uint8, offset=min(start, len(content)))
    if not shape or values.size != np.prod(shape, dtype=np.int64):
        raise DataError(f"{path} is cut short or damaged: {values.size} bytes for the shape {shape}")
    return values.reshape(shape)
