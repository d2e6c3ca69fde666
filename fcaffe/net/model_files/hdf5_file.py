"""HDF5 snapshot files: opened so that whatever is wrong with one comes out as an error of one line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from fcaffe.data.hdf5 import MOST_PACKED, h5py
from fcaffe.errors import FcaffeError, SnapshotError
from fcaffe.proto import replacing


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The h5py.File at `path`; what h5py raises in the body becomes a SnapshotError that names the file."""
    library = h5py()
    try:
        with library.File(path, "r") as file:
            yield file
    except FcaffeError as problem:
        raise SnapshotError(f"{path}: {problem}") from problem
    except Exception as problem:  # h5py has many kinds for a damaged file
        raise SnapshotError(
            f"cannot read {path} ({_one_line(problem)}): it is missing, damaged, cut off or no HDF5 file"
        ) from problem


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """A new h5py.File that takes the place of `path` when the body is done; SnapshotError if it cannot be written."""
    library = h5py()
    try:
        with replacing(path) as temporary, library.File(temporary, "w") as file:
            yield file
    except (RuntimeError, ValueError, TypeError) as problem:
        raise SnapshotError(f"cannot write {path}: {_one_line(problem)}") from problem


def read_array(dataset: Any) -> np.ndarray:
    """A dataset of numbers, whole. One that claims more than its file can hold is refused before memory is taken."""
    if not isinstance(dataset, h5py().Dataset) or dataset.shape is None or dataset.dtype.kind not in "fiu":
        raise SnapshotError(f"{dataset.name} is no array of numbers; the file is damaged")
    size = dataset.size * dataset.dtype.itemsize
    if size and (not dataset.id.get_storage_size() or size > MOST_PACKED * os.path.getsize(dataset.file.filename)):
        raise SnapshotError(f"{dataset.name} of shape {dataset.shape} is not in the file; it is damaged")
    return np.asarray(dataset[()])


def write_string(group: Any, name: str, text: str) -> None:
    """A string as C programs read it: of fixed length, with a zero at the end."""
    library = h5py()
    content = text.encode() + b"\0"
    kind = library.h5t.C_S1.copy()
    kind.set_size(len(content))
    kind.set_strpad(library.h5t.STR_NULLTERM)
    dataset = library.h5d.create(group.id, name.encode(), kind, library.h5s.create(library.h5s.SCALAR))
    dataset.write(library.h5s.ALL, library.h5s.ALL, np.array(content), mtype=kind)


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())
