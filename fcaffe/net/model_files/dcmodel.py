"""Compressed models, .dcmodel: arrays of few different numbers, many of them 0, as indices with Huffman codes.

Nothing is lost: an array comes back bit for bit, and one of too many different numbers stays as it is. What makes few
of many is `fcaffe compress`. docs/compression.md has the format.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe.engines.memory import obtainable_bytes
from fcaffe.errors import SnapshotError
from fcaffe.input_files import read_input, reading
from fcaffe.net.model_files.huffman import MOST_SYMBOLS, Packed, streams_of
from fcaffe.net.model_files.model import (
    Model,
    Places,
    StoredLayer,
    Unread,
    check_text,
    is_wanted,
    layer_from_outline,
    put_values,
)
from fcaffe.net.model_files.sparse_codes import Coded, decode, encode
from fcaffe.output_files import replacing
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb

MAGIC = b"\x89FCDM\r\n\x1a"  # as PNG's: what changes the ends of lines, or the eighth bit, breaks it
VERSION = 1

_HEAD = struct.Struct("<8sIIIQ")  # magic, version, bytes of the index, packed and unpacked, bytes of the content
_FORM = struct.Struct("<BB")  # of an array: ABSENT, RAW or CODED; bytes of a number
_PACKED = struct.Struct("<QH")  # symbols, different ones
_CRC = struct.Struct("<I")
_ABSENT, _RAW, _CODED = range(3)
_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<f2"), 4: np.dtype("<f4"), 8: np.dtype("<f8")}
_LARGEST_INDEX = 1 << 28  # bytes


class Size(NamedTuple):
    """What a blob's values take in a file, beside its code book and its tables."""

    layer: str
    blob: int
    nbytes: int


def write(path: str | os.PathLike[str], model: Model) -> list[Size]:
    """Write a model with whatever values it has, whole or not at all. Raises SnapshotError."""
    outline = model.outline()
    index, content, sizes = [_CRC.pack(len(outline)), outline], list[bytes](), list[Size]()
    for layer in model.layers:
        for number, blob in enumerate(layer.blobs):
            taken = 0
            for values in (blob.data, blob.diff):
                described, pieces = _encoded(values)
                index.append(described)
                content += pieces
                taken += sum(map(len, pieces))
            sizes.append(Size(layer.name, number, taken))
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
    return sizes


def read(path: str | os.PathLike[str], places: Places | None = None) -> Model:
    """The model in a file that `write` has made. Raises SnapshotError for one that is damaged or cut off.

    Values of blobs that the net with these `places` does not have are not decoded.
    """
    with reading(path, SnapshotError):
        file = read_input(path, most=1 << 40)
    try:
        return _model(*_parts(file), places)
    except SnapshotError as problem:
        raise SnapshotError(f"{path}: {problem}") from problem


def _parts(file: bytes) -> tuple[bytes, memoryview]:
    """The index and the content, once the check sum has been found right."""
    if len(file) < _HEAD.size:
        raise SnapshotError("it is cut off; copy it again")
    _, version, packed, unpacked, size = _HEAD.unpack_from(file)
    if version != VERSION:
        raise SnapshotError(f"it is of version {version} of the format, and this fcaffe reads version {VERSION}")
    whole = _HEAD.size + packed + size + _CRC.size
    if len(file) < whole:
        raise SnapshotError(f"it is cut off: {len(file)} bytes of {whole} are there; copy it again")
    if len(file) > whole or zlib.crc32(file[: -_CRC.size]) != _CRC.unpack(file[-_CRC.size :])[0]:
        raise SnapshotError("its check sum is wrong: it is damaged; copy it again")
    content = memoryview(file)[_HEAD.size + packed : -_CRC.size]
    try:
        index = zlib.decompressobj().decompress(file[_HEAD.size : _HEAD.size + packed], min(unpacked, _LARGEST_INDEX))
    except zlib.error as problem:
        raise SnapshotError(f"its index cannot be read ({problem}); it is damaged") from problem
    return index, content


def _model(index: bytes, content: memoryview, places: Places | None) -> Model:
    about, values = _Bytes(index), _Bytes(content)
    try:
        param = pb.NetParameter.FromString(bytes(about.take(_CRC.unpack(about.take(_CRC.size))[0])))
    except DecodeError as problem:
        raise SnapshotError("what it says of the net cannot be read; it is damaged") from problem
    check_text(param)
    layers, claimed = [layer_from_outline(layer) for layer in param.layer], 0
    for layer in layers:
        found: dict[tuple[int, str], np.ndarray | Unread] = {}
        for number, which, blob in _arrays(layer):
            form, itemsize = _FORM.unpack(about.take(_FORM.size))
            if form == _ABSENT:
                continue
            if form > _CODED or itemsize not in _DTYPES or min(blob.shape, default=0) < 0:
                raise SnapshotError(f'blob {number} of layer "{layer.name}" is of no known form; it is damaged')
            count, dtype = math.prod(blob.shape), _DTYPES[itemsize]
            wanted = is_wanted(places, layer, number, blob.shape)
            claimed += count * itemsize * wanted
            if claimed > (obtainable_bytes(np) or claimed):
                raise SnapshotError(
                    f"what it says that it holds takes {claimed} bytes, more than this machine has free"
                )
            if form == _RAW:
                array = np.frombuffer(values.take(count * itemsize), dtype)
            else:
                coded = _coded(about, values, dtype, count)
                array = decode(coded, count) if wanted else np.zeros(0)
            found[number, which] = array.reshape(blob.shape) if wanted else Unread(blob.shape)
        put_values(layer, found)
    param.ClearField("layer")
    return Model(param, layers)


def _arrays(layer: StoredLayer) -> Iterator[tuple[int, str, StoredBlob]]:
    for number, blob in enumerate(layer.blobs):
        for which in ("data", "diff"):
            yield number, which, blob


def _encoded(values: np.ndarray | None) -> tuple[bytes, list[bytes]]:
    """What the index says of an array, and the bytes of its content."""
    if values is None:
        return _FORM.pack(_ABSENT, 0), []
    dtype = _DTYPES[values.dtype.itemsize]
    flat = np.ascontiguousarray(values, dtype).reshape(-1)
    coded = encode(flat)
    if coded is not None:
        about = [_FORM.pack(_CODED, dtype.itemsize), struct.pack("<H", len(coded.book)), coded.book.tobytes()]
        for packed in (coded.gaps, coded.codes):
            about += [_PACKED.pack(packed.size, len(packed.lengths)), packed.lengths.tobytes()]
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
        count, symbols = _PACKED.unpack(about.take(_PACKED.size))
        if symbols > MOST_SYMBOLS or count > size:
            raise SnapshotError(f"{count} codes of {symbols} symbols do not make {size} numbers; it is damaged")
        lengths = np.frombuffer(about.take(symbols), np.uint8)
        stream_bits = np.frombuffer(about.take(2 * streams_of(count)), "<u2")
        described.append((count, lengths, stream_bits))
    packed = []
    for count, lengths, stream_bits in described:
        content = values.take(-(-int(stream_bits.sum(dtype=np.int64)) // 8))
        packed.append(Packed(count, lengths, stream_bits, np.frombuffer(content, np.uint8)))
    return Coded(book, *packed)


class _Bytes:
    """Bytes that are taken from their beginning on."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._content, self._at = content, 0

    def take(self, size: int) -> bytes | memoryview:
        """The next so many bytes. Raises SnapshotError if there are fewer."""
        begin, self._at = self._at, self._at + size
        if self._at > len(self._content):
            raise SnapshotError("it says that it holds more than it does; it is damaged")
        return self._content[begin : self._at]
