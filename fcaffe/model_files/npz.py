"""Models as NumPy's .npz: one array for each ArrayName, and the array "net" with the outline as bytes.

A .npz without "net", such as one that a user wrote by NumPy, gives layers with names and blobs.

A .dcmodel is such a file, packed by LZMA, in which arrays that are called <name>.book, .gaps, .codes and .shape may
stand for an array of few different numbers, many of them 0, which comes back bit for bit (S. Han, H. Mao, W. Dally,
"Deep Compression", 2016, sections 2, 3 and 5). A gap is the number of zeros before a number, whose code is its index in
the book. For a run of zeros that a gap cannot hold, the paper inserts a number that is 0. Here a special gap stands for
ZEROS zeros without a number.
"""

from __future__ import annotations

import math
import os
import zipfile

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import MOST_PACKED, asking, opened_by
from fcaffe.model_files.arrays import ArrayName, Contents, check_memory, outline_from, stored_arrays
from fcaffe.model_files.model import Model
from fcaffe.output_files import replacing

ZEROS = 255  # the gap that stands for so many zeros and no number; a smaller one for zeros, and a number
MOST_NUMBERS = 1 << 12  # in a book

_NET = "net"
_PARTS = (".book", ".gaps", ".codes", ".shape")


def contents(path: str | os.PathLike[str]) -> Contents:
    """The contents of a .npz or .dcmodel. Raises SnapshotError and UnreadableError."""
    with opened_by(zipfile.ZipFile, path) as archive:
        infos = archive.infolist()
        size = sum(info.file_size for info in infos)
        if size > MOST_PACKED * os.path.getsize(path):
            raise SnapshotError("it claims more than its size can hold; it is damaged")
        check_memory(size)
        members = {info.filename.removesuffix(".npy"): _read(archive, info) for info in infos}
    outline = outline_from(members.pop(_NET).tobytes() if _NET in members else b"")
    for stem in [name.removesuffix(_PARTS[0]) for name in members if name.endswith(_PARTS[0])]:
        if any(stem + part not in members for part in _PARTS):
            raise SnapshotError(f'"{stem}" lacks some of its codes; the file is damaged')
        members[stem] = decode(*(members.pop(stem + part) for part in _PARTS))
    return Contents(outline, {ArrayName.parse(name): values for name, values in members.items()})


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


def encode(values: np.ndarray) -> tuple[np.ndarray, ...] | None:
    """The book, gaps, codes and shape of a float array; None if they are not shorter, or the book too long."""
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
    return (*parts, np.array(values.shape, np.int64)) if sum(part.nbytes for part in parts) < values.nbytes else None


def decode(book: np.ndarray, gaps: np.ndarray, codes: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """The array that `encode` encoded. Raises SnapshotError if the codes do not fit."""
    kinds = book.dtype.kind, gaps.dtype, codes.dtype.kind, shape.dtype
    if kinds != ("f", np.uint8, "u", np.int64) or {book.ndim, gaps.ndim, codes.ndim, shape.ndim} != {1}:
        raise SnapshotError("codes are of another type than they should be; the file is damaged")
    sizes = shape.tolist()
    count = math.prod(sizes)
    check_memory(count * book.itemsize)
    is_number = gaps != ZEROS
    indices = (np.cumsum(gaps + is_number, dtype=np.int64) - 1)[is_number]
    codes = codes.astype(np.int64)
    fits = len(indices) == len(codes) and codes.max(initial=-1) < len(book) and indices.max(initial=-1) < count
    if not fits or min(sizes, default=0) < 0:
        raise SnapshotError("numbers lie outside their array or their book; the file is damaged")
    values = np.zeros(count, book.dtype)
    values[indices] = book[codes]
    return values.reshape(sizes)


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """The array of a member. Raises SnapshotError if the member's size does not fit its header."""
    with asking(), archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        size = file.tell() + dtype.itemsize * math.prod(shape)
    if dtype.kind not in "fiu" or info.file_size != size:
        raise SnapshotError(f"{info.filename} holds {info.file_size} bytes, not {size} of the shape {shape}")
    with asking(), archive.open(info) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
