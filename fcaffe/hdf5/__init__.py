"""Reads HDF5 files by the optional package h5py, with checks against damaged and hostile ones, and writes them.

A full disk, where HDF5 itself crashes, does no harm.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fcaffe.engines.memory import obtainable_bytes
from fcaffe.errors import DataError, FcaffeError
from fcaffe.input_files import MOST_PACKED, UnreadableError, asking, opened_by
from fcaffe.output_files import replacing

# A file could have any other file of this machine read, and copied into a model or an answer.
ELSEWHERE = "has its values in another file, which is not read; copy them into this file (h5repack, or h5py)"


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], error: type[FcaffeError]) -> Iterator[Any]:
    """Yields the h5py.File at `path`. FcaffeErrors of the body become `error`s that name the file."""
    library = h5py()
    try:
        with opened_by(library.File, path) as file:
            yield file
    except UnreadableError as problem:
        raise error(f"cannot read {path} ({problem}): it is missing, damaged, cut off or no HDF5 file") from problem
    except FcaffeError as problem:
        raise error(f"{path}: {problem}") from problem


def names_in(group: Any) -> list[str]:
    """The names of a group's members, in HDF5's order."""
    with asking():
        names = list(group)
    for name in names:
        if name != name.encode(errors="replace").decode():
            raise Hdf5Error(f"{group.name} has a member with the name {name!r}, which is no text; the file is damaged")
    return names


def member(group: Any, path: str) -> Any:
    """The group or dataset at a path below a group, or None. Raises Hdf5Error if a link leads to another file."""
    with asking():
        found = group.get(path)
        is_here = found is None or found.file.filename == group.file.filename
    if not is_here:
        raise Hdf5Error(f'"{path}" {ELSEWHERE}')
    return found


def attribute(group: Any, name: str, kinds: str) -> Any:
    """A scalar attribute whose type is of one of NumPy's `kinds`, or None. Raises Hdf5Error for other types."""
    with asking():
        stored = group.attrs.get_id(name) if name in group.attrs else None
        known = stored is not None and stored.shape == () and stored.dtype.kind in kinds
        value = group.attrs[name] if known else None
    if stored is not None and not known:
        raise Hdf5Error(f'attribute "{name}" of "{group.name}" is not what fcaffe writes; the file is damaged')
    return value


def shape_of(dataset: Any) -> tuple[int, ...]:
    """The shape of a dataset of numbers. Raises Hdf5Error if it is none."""
    if isinstance(dataset, h5py().Dataset):
        with asking():
            shape, kind = dataset.shape, dataset.dtype.kind
        if shape is not None and kind in "fiu":
            return shape
    raise Hdf5Error(f'"{dataset.name}" is no array of numbers; the file is damaged')


def check_stored(dataset: Any, unwritten: bool = False) -> int:
    """The bytes that the values of a dataset take in memory. Raises Hdf5Error if they are not in the file.

    A dataset without storage, which reads as zeros, is allowed only if `unwritten` is true.
    """
    shape = shape_of(dataset)
    with asking():
        is_elsewhere = dataset.is_virtual or dataset.external
        stored, whole = dataset.id.get_storage_size(), os.path.getsize(dataset.file.filename)
        size = math.prod(shape) * max(dataset.dtype.itemsize, 4)  # no smaller once it is float32
    if is_elsewhere:
        raise Hdf5Error(f'"{dataset.name}" {ELSEWHERE}')
    if size and (not (stored or unwritten) or size > MOST_PACKED * whole):
        raise Hdf5Error(f'"{dataset.name}" of shape {shape} is not in the file; it is damaged')
    return size


def check_sizes(datasets: Iterable[Any], unwritten: bool = False) -> None:
    """Raise Hdf5Error if the file is too small to hold the datasets, or this machine has too little memory for them."""
    total = sum(check_stored(dataset, unwritten) for dataset in datasets)
    memory = obtainable_bytes(np)
    if memory is not None and total > memory:
        raise Hdf5Error(f"its arrays take {total} bytes, and this machine has {memory} free")


def values_of(dataset: Any, dtype: Any = None) -> np.ndarray:
    """Read a dataset of numbers. Call `check_sizes` or `check_stored` first."""
    with asking():
        return np.asarray(dataset[()] if dtype is None else dataset.astype(dtype)[()])


def read_array(dataset: Any) -> np.ndarray:
    """Read a dataset of numbers. Raises Hdf5Error if it claims more values than its file can hold."""
    check_sizes([dataset])
    return values_of(dataset)


class Hdf5Error(FcaffeError):
    """An error in a file's content. The caller that opened the file adds its name."""


def h5py() -> Any:
    """The h5py module. Raises DataError, which says what to install, if it is missing."""
    try:
        import h5py
    except ImportError as problem:
        raise DataError("HDF5 files need h5py: pip install h5py") from problem
    return h5py


def put_string(group: Any, name: str, text: str) -> None:
    """Add a string of fixed length with a zero at its end, as C programs read it."""
    library = h5py()
    content = text.encode() + b"\0"
    kind = library.h5t.C_S1.copy()
    kind.set_size(len(content))
    kind.set_strpad(library.h5t.STR_NULLTERM)
    dataset = library.h5d.create(group.id, name.encode(), kind, library.h5s.create(library.h5s.SCALAR))
    dataset.write(library.h5s.ALL, library.h5s.ALL, np.array(content), mtype=kind)


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str], noun: str, error: type[FcaffeError]) -> Iterator[Any]:
    """Yields a new h5py.File, which replaces `path` at the end. Raises `error`. `noun` names the content.

    HDF5 crashes at its end if one of its writes fails, so it writes to memory, and the finished file is copied.
    """
    content = io.BytesIO()
    with h5py().File(content, "w") as file:
        try:
            yield file
        except (OSError, ValueError, TypeError) as problem:  # of h5py, such as for a name that it cannot hold
            raise error(f"cannot write {path}: {' '.join(str(problem).split())}") from problem
    with replacing(path, noun, error) as temporary, open(temporary, "wb") as target:
        target.write(content.getbuffer())
