"""The format .dcmodel: arrays of few different numbers, many of them 0, as indices with Huffman codes.

The format is lossless: an array comes back bit for bit, and an array of too many different numbers is stored as it is.
`fcaffe compress` makes the numbers few. docs/compression.md specifies the format.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fcaffe.deep_compression.huffman import MOST_SYMBOLS, PackedSymbols, streams_of
from fcaffe.deep_compression.sparse_codes import Coded, decode, encode
from fcaffe.errors import SnapshotError
from fcaffe.input_files import read_input, reading
from fcaffe.model_files.arrays import ArrayName, Contents, Packed, arrays_in, arrays_of, outline_from
from fcaffe.model_files.model import Model
from fcaffe.output_files import replacing

MAGIC = b"\x89FCDM\r\n\x1a"  # as in PNG, a copy that changes line ends or the eighth bit damages it
VERSION = 1

_HEAD = struct.Struct("<8sIIIQ")  # magic, version, bytes of the index (compressed, then not), of the content
_FORM = struct.Struct("<BB")  # of an array: ABSENT, RAW or CODED; bytes of a number
_SYMBOLS = struct.Struct("<QH")  # symbols, different ones
_CRC = struct.Struct("<I")
_ABSENT, _RAW, _CODED = range(3)
_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<f2"), 4: np.dtype("<f4"), 8: np.dtype("<f8")}
_LARGEST_INDEX = 1 << 28  # bytes


class Size(NamedTuple):
    """The bytes of a blob's values in a file, without code book and tables."""

    layer: str
    blob: int
    nbytes: int


def write(path: str | os.PathLike[str], model: Model) -> list[Size]:
    """Write a model completely or not at all, and return the sizes of its blobs. Raises SnapshotError."""
    outline = model.outline()
    index, content, sizes = [_CRC.pack(len(outline)), outline], list[bytes](), dict[tuple[str, int], int]()
    for name, blob in arrays_of(model.layers):
        described, pieces = _encoded(getattr(blob, name.kind))
        index.append(described)
        content += pieces
        sizes[name[:2]] = sizes.get(name[:2], 0) + sum(map(len, pieces))
    unpacked = b"".join(index)
    if len(unpacked) > _LARGEST_INDEX:
        raise SnapshotError(f"cannot write {path}: it has too many blobs for a .dcmodel; write a .safetensors")
    packed = zlib.compress(unpacked, 9)
    head = _HEAD.pack(MAGIC, VERSION, len(packed), len(unpacked), sum(map(len, content)))
    crc = 0
    with replacing(path, "model", SnapshotError) as temporary, open(temporary, "wb") as file:
        for piece in (head, packed, *content):
            crc = zlib.crc32(piece, crc)
            file.write(piece)
        file.write(_CRC.pack(crc))
    return [Size(*key, nbytes) for key, nbytes in sizes.items()]


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Contents]:
    """The contents of a file. Raises SnapshotError if it is damaged or truncated."""
    with reading(path, SnapshotError):
        file = read_input(path, most=1 << 40)
    index, content = (_Bytes(part) for part in _parts(file))
    outline = outline_from(bytes(index.take(_CRC.unpack(index.take(_CRC.size))[0])))
    arrays: dict[ArrayName, Packed] = {}
    for name, blob in arrays_in(outline):
        form, itemsize = _FORM.unpack(index.take(_FORM.size))
        if form == _ABSENT:
            continue
        if form > _CODED or itemsize not in _DTYPES or min(blob.shape, default=0) < 0:
            raise SnapshotError(f'blob {name.blob} of layer "{name.layer}" is of no known form; it is damaged')
        count, dtype = math.prod(blob.shape), _DTYPES[itemsize]
        source = content.take(count * itemsize) if form == _RAW else _coded(index, content, dtype, count)
        arrays[name] = Packed(blob.shape, count * itemsize, functools.partial(_array, source, dtype, blob.shape))
    yield Contents(outline, arrays)


def _array(source: bytes | memoryview | Coded, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    flat = decode(source, math.prod(shape)) if isinstance(source, Coded) else np.frombuffer(source, dtype)
    return flat.reshape(shape)


def _parts(file: bytes) -> tuple[bytes, memoryview]:
    """The index and the content of a file whose checksum is right. Raises SnapshotError."""
    if len(file) < _HEAD.size:
        raise SnapshotError("it is cut off; copy it again")
    _, version, packed, unpacked, size = _HEAD.unpack_from(file)
    if version != VERSION:
        raise SnapshotError(f"it is of version {version} of the format, and this fcaffe reads version {VERSION}")
    whole = _HEAD.size + packed + size + _CRC.size
    if len(file) < whole:
        raise SnapshotError(f"it is cut off: {len(file)} bytes of {whole} are there; copy it again")
    if len(file) > whole or zlib.crc32(file[: -_CRC.size]) != _CRC.unpack(file[-_CRC.size :])[0]:
        raise SnapshotError("its checksum is wrong: it is damaged; copy it again")
    content = memoryview(file)[_HEAD.size + packed : -_CRC.size]
    try:
        index = zlib.decompressobj().decompress(file[_HEAD.size : _HEAD.size + packed], min(unpacked, _LARGEST_INDEX))
    except zlib.error as problem:
        raise SnapshotError(f"its index cannot be read ({problem}); it is damaged") from problem
    return index, content


def _encoded(values: np.ndarray | None) -> tuple[bytes, list[bytes]]:
    """An array's entry in the index, and the pieces of its content."""
    if values is None:
        return _FORM.pack(_ABSENT, 0), []
    dtype = _DTYPES[values.dtype.itemsize]
    flat = np.ascontiguousarray(values, dtype).reshape(-1)
    coded = encode(flat)
    if coded is not None:
        about = [_FORM.pack(_CODED, dtype.itemsize), struct.pack("<H", len(coded.book)), coded.book.tobytes()]
        for packed in (coded.gaps, coded.codes):
            about += [_SYMBOLS.pack(packed.size, len(packed.lengths)), packed.lengths.tobytes()]
            about.append(packed.stream_bits.astype("<u2").tobytes())
        content = [packed.content.tobytes() for packed in (coded.gaps, coded.codes)]
        if sum(map(len, about + content)) < flat.nbytes + _FORM.size:
            return b"".join(about), content
    return _FORM.pack(_RAW, dtype.itemsize), [flat.tobytes()]


def _coded(about: _Bytes, values: _Bytes, dtype: np.dtype[Any], size: int) -> Coded:
    kinds = struct.unpack("<H", about.take(2))[0]
    book = np.frombuffer(about.take(kinds * dtype.itemsize), dtype)
    described = []
    for _ in range(2):
        count, symbols = _SYMBOLS.unpack(about.take(_SYMBOLS.size))
        if symbols > MOST_SYMBOLS or count > size:
            raise SnapshotError(f"{count} codes of {symbols} symbols do not make {size} numbers; it is damaged")
        lengths = np.frombuffer(about.take(symbols), np.uint8)
        stream_bits = np.frombuffer(about.take(2 * streams_of(count)), "<u2")
        described.append((count, lengths, stream_bits))
    packed = []
    for count, lengths, stream_bits in described:
        content = values.take(-(-int(stream_bits.sum(dtype=np.int64)) // 8))
        packed.append(PackedSymbols(count, lengths, stream_bits, np.frombuffer(content, np.uint8)))
    return Coded(book, *packed)


class _Bytes:
    """A reader of bytes."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._content, self._offset = content, 0

    def take(self, size: int) -> bytes | memoryview:
        """The next `size` bytes. Raises SnapshotError if fewer are left."""
        begin, self._offset = self._offset, self._offset + size
        if self._offset > len(self._content):
            raise SnapshotError("it claims more bytes than it has; it is damaged")
        return self._content[begin : self._offset]
