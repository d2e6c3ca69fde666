"""The format .dcmodel: arrays of few different numbers, many of them 0, as indices with Huffman codes.

The format is lossless: an array comes back bit for bit, and an array of too many different numbers is stored as it is.
`fcaffe compress` makes the numbers few. docs/compression.md specifies the format.

S. Han, H. Mao, W. Dally, "Deep Compression", 2016, sections 2, 3 and 5. A gap is the number of zeros before a number.
For a run of zeros that a gap cannot hold, the paper inserts a number that is 0. Here a special gap stands for ZEROS
zeros without a number. zlib gives gaps and indices their Huffman codes.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import read_input, reading
from fcaffe.model_files.arrays import ArrayName, Contents, Packed, arrays_in, arrays_of, outline_from
from fcaffe.model_files.model import Model
from fcaffe.output_files import replacing

MAGIC = b"\x89FCDM\r\n\x1a"  # as in PNG, a copy that changes line ends or the eighth bit damages it
VERSION = 2

_HEAD = struct.Struct("<8sIQQ")  # magic, version, bytes of the file, bytes of the coded outline
_ARRAY = struct.Struct("<BBQ")  # ABSENT, RAW or CODED; bytes of a number; bytes of the content behind it
_CRC = struct.Struct("<I")
_ABSENT, _RAW, _CODED = range(3)
_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<f2"), 4: np.dtype("<f4"), 8: np.dtype("<f8")}
_LARGEST_OUTLINE = 1 << 28  # bytes

ZEROS = 255  # the gap that stands for so many zeros and no number; a smaller one for zeros, and a number
MOST_NUMBERS = 1 << 12  # in a code book
_SAMPLE = 1 << 16  # numbers; detects arrays of too many different ones early
_DEFLATE = -15  # zlib's name for a stream without a header

_AS_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def write(path: str | os.PathLike[str], model: Model) -> dict[tuple[str, int], int]:
    """Write a model completely or not at all. Raises SnapshotError.

    Returns:
        The bytes of the values of each blob, by the layer and the blob's index.
    """
    outline, sizes = pack(model.outline()), dict[tuple[str, int], int]()
    pieces = [outline]
    for name, blob in arrays_of(model.layers):
        form, itemsize, content = _encoded(getattr(blob, name.kind))
        pieces += [_ARRAY.pack(form, itemsize, len(content)), content]
        sizes[name[:2]] = sizes.get(name[:2], 0) + len(content)
    whole = _HEAD.size + sum(map(len, pieces)) + _CRC.size
    pieces.insert(0, _HEAD.pack(MAGIC, VERSION, whole, len(outline)))
    checksum = functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces, 0)
    with replacing(path, "model", SnapshotError) as temporary, open(temporary, "wb") as file:
        file.writelines([*pieces, _CRC.pack(checksum)])
    return sizes


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Contents]:
    """The contents of a file. Raises SnapshotError if it is damaged or truncated."""
    with reading(path, SnapshotError):
        file = read_input(path, most=1 << 40)
    size = _checked_head(file)
    body = memoryview(file)[_HEAD.size : -_CRC.size]

    def take(size: int) -> memoryview:
        """The next bytes of the body. Raises SnapshotError if fewer are left."""
        nonlocal body
        taken, body = body[:size], body[size:]
        if len(taken) < size:
            raise SnapshotError("it claims more bytes than it has; it is damaged")
        return taken

    content, _ = unpack(take(size), _LARGEST_OUTLINE)
    outline = outline_from(content)
    arrays: dict[ArrayName, Packed] = {}
    for name, blob in arrays_in(outline):
        form, itemsize, size = _ARRAY.unpack(take(_ARRAY.size))
        if form == _ABSENT:
            continue
        if form > _CODED or itemsize not in _DTYPES or min(blob.shape, default=0) < 0:
            raise SnapshotError(f'blob {name.blob} of layer "{name.layer}" is of no known form; it is damaged')
        nbytes = math.prod(blob.shape) * itemsize
        if form == _RAW and size != nbytes:
            raise SnapshotError(f'blob {name.blob} of layer "{name.layer}" has {size} bytes, not {nbytes}')
        read = functools.partial(_array, take(size), form, _DTYPES[itemsize], blob.shape)
        arrays[name] = Packed(blob.shape, nbytes, read)
    yield Contents(outline, arrays)


def _array(content: memoryview, form: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    flat = decode(content, dtype, math.prod(shape)) if form == _CODED else np.frombuffer(content, dtype)
    return flat.reshape(shape)


def _checked_head(file: bytes) -> int:
    """The bytes of the coded outline. Raises SnapshotError unless the file is whole and its checksum right."""
    if len(file) < _HEAD.size:
        raise SnapshotError("it is cut off; copy it again")
    _, version, whole, outline = _HEAD.unpack_from(file)
    if version != VERSION:
        raise SnapshotError(f"it is of version {version} of the format, and this fcaffe reads version {VERSION}")
    if len(file) < whole:
        raise SnapshotError(f"it is cut off: {len(file)} bytes of {whole} are there; copy it again")
    if len(file) > whole or zlib.crc32(file[: -_CRC.size]) != _CRC.unpack(file[-_CRC.size :])[0]:
        raise SnapshotError("its checksum is wrong: it is damaged; copy it again")
    return int(outline)


def _encoded(values: np.ndarray | None) -> tuple[int, int, bytes]:
    """An array's form, bytes of a number, and content: the shorter one of its codes and its values."""
    if values is None:
        return _ABSENT, 0, b""
    dtype = _DTYPES[values.dtype.itemsize]
    flat = np.ascontiguousarray(values, dtype).reshape(-1)
    coded = encode(flat)
    if coded is None or len(coded) >= flat.nbytes:
        return _RAW, dtype.itemsize, flat.tobytes()
    return _CODED, dtype.itemsize, coded


def pack(content: bytes) -> bytes:
    """Code bytes as a stream of DEFLATE: Huffman codes, and repetitions of the last byte."""
    coder = zlib.compressobj(9, wbits=_DEFLATE, memLevel=9, strategy=zlib.Z_RLE)
    return coder.compress(content) + coder.flush()


def unpack(content: bytes | memoryview, most: int) -> tuple[bytes, bytes]:
    """Decode a stream, and return the bytes behind it too. Raises SnapshotError if it has more than `most` bytes."""
    decoder = zlib.decompressobj(wbits=_DEFLATE)
    try:
        found = decoder.decompress(content, most + 1)
    except zlib.error as problem:
        raise SnapshotError(f"its codes cannot be read ({problem}); it is damaged") from problem
    if len(found) > most or not decoder.eof:
        raise SnapshotError("its codes do not end where they should; it is damaged")
    return found, decoder.unused_data


def encode(values: np.ndarray) -> bytes | None:
    """Code a one-dimensional float array losslessly. None if it has more than MOST_NUMBERS different numbers."""
    bits = np.ascontiguousarray(values).view(_AS_BITS[values.dtype.itemsize])  # so -0 and NaN are coded as well
    if len(np.unique(bits[:_SAMPLE])) > MOST_NUMBERS + 1:
        return None
    indices = np.flatnonzero(bits)
    book, codes = np.unique(bits[indices], return_inverse=True)
    if len(book) > MOST_NUMBERS:
        return None
    zeros = np.diff(indices, prepend=-1) - 1
    ends = np.cumsum(zeros // ZEROS + 1)
    gaps = np.full(ends[-1] if len(ends) else 0, ZEROS, np.uint8)
    gaps[ends - 1] = zeros % ZEROS
    high = codes >> 8 if len(book) > 256 else codes[:0]
    streams = (book, gaps, (codes & 255).astype(np.uint8), high.astype(np.uint8))
    return b"".join(pack(stream.tobytes()) for stream in streams)


def decode(content: bytes | memoryview, dtype: np.dtype[Any], size: int) -> np.ndarray:
    """Decode an array of `size` numbers. Raises SnapshotError if the codes do not fit."""
    streams = []
    for most in (MOST_NUMBERS * dtype.itemsize, 2 * size, size, size):
        stream, content = unpack(content, most)
        streams.append(stream)
    book, gaps, low, high = (np.frombuffer(stream, np.uint8) for stream in streams)
    if content or len(book) % dtype.itemsize or len(high) not in (0, len(low)):
        raise SnapshotError("its codes do not fit one another; it is damaged")
    codes = low.astype(np.int64)
    codes[: len(high)] += high.astype(np.int64) << 8
    is_number = gaps != ZEROS
    indices = (np.cumsum(gaps + is_number, dtype=np.int64) - 1)[is_number]
    numbers = book.view(dtype)
    if len(indices) != len(codes) or codes.max(initial=-1) >= len(numbers) or indices.max(initial=-1) >= size:
        raise SnapshotError("numbers lie outside their array or their code book; the file is damaged")
    values = np.zeros(size, dtype)
    values[indices] = numbers[codes]
    return values
