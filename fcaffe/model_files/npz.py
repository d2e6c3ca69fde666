"""Models as NumPy's .npz: one array for each ArrayName, and the array "net" with the outline as bytes.

A .npz without "net", such as one that a user wrote by NumPy, gives layers with names and blobs.

A .dcmodel is such a file, packed by LZMA, in which the arrays <name>.book, <name>.gaps and <name>.codes may stand
for an array of few different numbers, many of them 0 (S. Han, H. Mao, W. Dally, "Deep Compression", 2016, sections 2, 3
and 5). That is lossless: the array comes back bit for bit. A gap is the number of zeros before a number, whose code is
its index in the book. For a run of zeros that a gap cannot hold, the paper inserts a number that is 0. Here a special
gap stands for ZEROS zeros without a number.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import MOST_PACKED, asking, opened_by
from fcaffe.model_files.arrays import ArrayName, Contents, Packed, arrays_in, outline_from, stored_arrays
from fcaffe.model_files.model import Model
from fcaffe.output_files import replacing

ZEROS = 255  # the gap that stands for so many zeros and no number; a smaller one for zeros, and a number
MOST_NUMBERS = 1 << 12  # in a book

_NET = "net"
_PARTS = (".book", ".gaps", ".codes")


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Contents]:
    """The contents of a .npz or .dcmodel. Raises SnapshotError and UnreadableError."""
    with opened_by(zipfile.ZipFile, path) as archive:
        infos = archive.infolist()
        if sum(info.file_size for info in infos) > MOST_PACKED * os.path.getsize(path):
            raise SnapshotError("it claims more than its size can hold; it is damaged")
        members = {info.filename.removesuffix(".npy"): _packed(archive, info) for info in infos}
        outline = outline_from(members.pop(_NET).read().tobytes() if _NET in members else b"")
        shapes = {str(name): blob.shape for name, blob in arrays_in(outline)}
        arrays = {}
        for stem in [name.removesuffix(_PARTS[0]) for name in members if name.endswith(_PARTS[0])]:
            if min(shapes.get(stem, [-1]), default=0) < 0 or any(stem + part not in members for part in _PARTS):
                raise SnapshotError(f'"{stem}" lacks its shape or some of its codes; the file is damaged')
            parts = [members.pop(stem + part) for part in _PARTS]
            arrays[ArrayName.parse(stem)] = _sparse(parts, shapes[stem])
        arrays |= {ArrayName.parse(name): array for name, array in members.items()}
        yield Contents(outline, arrays)


def write(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model, packed if the name ends in .dcmodel. Raises SnapshotError."""
    packs = os.fspath(path).endswith(".dcmodel")
    arrays = {_NET: np.frombuffer(model.outline(), np.uint8)}
    for name, values in stored_arrays(model):
        parts = encode(values) if packs else None
        if parts is None:
            arrays[str(name)] = values
        else:
            arrays |= {f"{name}{part}": array for part, array in zip(_PARTS, parts, strict=True)}
    if impossible := [layer.name for layer in model.layers if "\0" in layer.name]:
        raise SnapshotError(f'a .npz cannot hold a layer with the name "{impossible[0]}"; give it another')
    kind = zipfile.ZIP_LZMA if packs else zipfile.ZIP_STORED
    with replacing(path, "model", SnapshotError) as temporary, zipfile.ZipFile(temporary, "w", kind) as archive:
        for key, array in arrays.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def encode(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The book, gaps and codes of a float array; None if they are not shorter, or the book too long."""
    if values.dtype.kind != "f":
        return None
    bits = np.ascontiguousarray(values).reshape(-1).view(f"u{values.dtype.itemsize}")  # so -0 and NaN are coded as well
    indices = np.flatnonzero(bits)
    book, codes = np.unique(bits[indices], return_inverse=True)
    if len(book) > MOST_NUMBERS:
        return None
    zeros = np.diff(indices, prepend=-1) - 1
    ends = np.cumsum(zeros // ZEROS + 1)
    gaps = np.full(ends[-1] if len(ends) else 0, ZEROS, np.uint8)
    gaps[ends - 1] = zeros % ZEROS
    parts = book.view(values.dtype), gaps, codes.astype(np.uint8 if len(book) <= 256 else np.uint16)
    return parts if sum(part.nbytes for part in parts) < values.nbytes else None


def decode(book: np.ndarray, gaps: np.ndarray, codes: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array of this shape that `encode` encoded. Raises SnapshotError if the codes do not fit."""
    is_number = gaps != ZEROS
    indices = (np.cumsum(gaps + is_number, dtype=np.int64) - 1)[is_number]
    codes = codes.astype(np.int64)
    values = np.zeros(math.prod(shape), book.dtype)
    if len(indices) != len(codes) or codes.max(initial=-1) >= len(book) or indices.max(initial=-1) >= values.size:
        raise SnapshotError("numbers lie outside their array or their book; the file is damaged")
    values[indices] = book[codes]
    return values.reshape(shape)


def _sparse(parts: list[Packed], shape: tuple[int, ...]) -> Packed:
    def read() -> np.ndarray:
        book, gaps, codes = (part.read().reshape(-1) for part in parts)
        if (book.dtype.kind, gaps.dtype, codes.dtype.kind) != ("f", np.uint8, "u"):
            raise SnapshotError("codes are of another type than they should be; the file is damaged")
        return decode(book, gaps, codes, shape)

    return Packed(shape, math.prod(shape) * 8, read)


def _packed(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Packed:
    """The array of a member. Raises SnapshotError if the member's size does not fit its header."""
    with asking(), archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        begin = file.tell()
    size = dtype.itemsize * math.prod(shape)
    if dtype.kind not in "fiu" or info.file_size != begin + size:
        raise SnapshotError(f"{info.filename} holds {info.file_size} bytes, not {size} of the shape {shape}")
    return Packed(shape, info.file_size, functools.partial(_read, archive, info))


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    with asking(), archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
