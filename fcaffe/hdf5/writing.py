"""Writes HDF5 files, also on a full disk, where HDF5 itself crashes."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from fcaffe.errors import FcaffeError
from fcaffe.hdf5.reading import h5py
from fcaffe.input_files import UnreadableError, asking
from fcaffe.output_files import replacing


class Hdf5Writer:
    """A new HDF5 file in memory. `root` is its root group.

    HDF5 crashes at its end if one of its writes fails, so it never writes to a disk. `write` copies the finished file.
    """

    def __init__(self) -> None:
        self._content = io.BytesIO()
        self.root = h5py().File(self._content, "w")

    def group(self, parent: Any, name: str) -> Any:
        """Get or create a group. Raises UnreadableError if an array has this name."""
        with asking():
            return parent.require_group(name)

    def attribute(self, group: Any, name: str, value: Any) -> None:
        with asking():
            group.attrs[name] = value

    def array(self, group: Any, name: str, array: np.ndarray) -> None:
        """Add a contiguous dataset."""
        with asking():
            group.create_dataset(name, data=array)

    def string(self, group: Any, name: str, text: str) -> None:
        """Add a string of fixed length with a zero at its end, as C programs read it."""
        library = h5py()
        content = text.encode() + b"\0"
        kind = library.h5t.C_S1.copy()
        kind.set_size(len(content))
        kind.set_strpad(library.h5t.STR_NULLTERM)
        dataset = library.h5d.create(group.id, name.encode(), kind, library.h5s.create(library.h5s.SCALAR))
        dataset.write(library.h5s.ALL, library.h5s.ALL, np.array(content), mtype=kind)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, and close the writer. Raises OSError."""
        self.root.close()
        with open(path, "wb") as file:
            file.write(self._content.getbuffer())


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str], noun: str, error: type[FcaffeError]) -> Iterator[Hdf5Writer]:
    """Yields the writer of a new file, which replaces `path` at the end. Raises `error`. `noun` names the content."""
    writer = Hdf5Writer()
    try:
        yield writer
        with replacing(path, noun, error) as temporary:
            writer.write(temporary)
    except UnreadableError as problem:
        raise error(f"cannot write {path}: {problem}") from problem
    finally:
        writer.root.close()
