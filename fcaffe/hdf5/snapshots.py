"""Opens HDF5 files of models and solver states. All errors become SnapshotErrors that name the file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from fcaffe.errors import DataError, FcaffeError, SnapshotError
from fcaffe.hdf5.library import Hdf5Error
from fcaffe.hdf5.reading import opened
from fcaffe.hdf5.writing import Hdf5Writer, new_file
from fcaffe.input_files import UnreadableError
from fcaffe.output_files import replacing


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Yields the h5py.File at `path`. FcaffeErrors of the body become SnapshotErrors that name the file."""
    try:
        with opened(path) as file:
            yield file
    except DataError:  # h5py is missing
        raise
    except UnreadableError as problem:
        raise SnapshotError(
            f"cannot read {path} ({problem}): it is missing, damaged, cut off or no HDF5 file"
        ) from problem
    except FcaffeError as problem:
        raise SnapshotError(f"{path}: {problem}") from problem


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], noun: str) -> Iterator[Hdf5Writer]:
    """Yields the writer of a new file, which replaces `path` at the end. Raises SnapshotError."""
    try:
        with new_file() as writer:
            yield writer
            with replacing(path, noun, SnapshotError) as temporary:
                writer.write(temporary)
    except (Hdf5Error, UnreadableError) as problem:
        raise SnapshotError(f"cannot write {path}: {problem}") from problem
