"""Models as NumPy's .npz: one array for each ArrayName, and the array "net" with the outline as bytes.

A .npz without "net", such as one that a user wrote by NumPy, gives layers with names and blobs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import zipfile
from collections.abc import Iterator

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import MOST_PACKED, asking, opened_by
from fcaffe.model_files.arrays import ArrayName, Contents, Packed, outline_from, stored_arrays
from fcaffe.model_files.model import Model
from fcaffe.output_files import replacing

_NET = "net"


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Contents]:
    """The contents of a .npz. Raises SnapshotError and UnreadableError."""
    with opened_by(zipfile.ZipFile, path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if sum(info.file_size for info in members.values()) > MOST_PACKED * os.path.getsize(path):
            raise SnapshotError("it claims more than its size can hold; it is damaged")
        outline = _packed(archive, members.pop(_NET)).read().tobytes() if _NET in members else b""
        arrays = {ArrayName.parse(name): _packed(archive, info) for name, info in members.items()}
        yield Contents(outline_from(outline), arrays)


def write(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model. Raises SnapshotError."""
    arrays = {_NET: np.frombuffer(model.outline(), np.uint8)} | {
        str(name): array for name, array in stored_arrays(model)
    }
    if impossible := [layer.name for layer in model.layers if "\0" in layer.name]:
        raise SnapshotError(f'a .npz cannot hold a layer with the name "{impossible[0]}"; give it another')
    with replacing(path, "model", SnapshotError) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


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


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with asking(), archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
