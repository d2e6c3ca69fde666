"""Writes HDF5 files, also on a full disk, where HDF5 itself crashes."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from fcaffe.errors import FcaffeError
from fcaffe.hdf5.library import h5py
from fcaffe.input_files import UnreadableError, asking
from fcaffe.output_files import replacing


class _Pages(io.RawIOBase):
    """A sparse file in memory, for h5py. Unwritten pages take no memory."""

    SIZE = 1 << 16

    def __init__(self) -> None:
        self.pages: dict[int, bytearray] = {}
        self.end = 0
        self._position = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self.end)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        for page, within, taken in self._pieces(len(view)):
            content = self.pages.get(page)
            size = taken.stop - taken.start
            view[taken] = bytes(size) if content is None else content[within : within + size]
        self._position += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for page, within, taken in self._pieces(len(view)):
            content = self.pages.setdefault(page, bytearray(self.SIZE))
            content[within : within + taken.stop - taken.start] = view[taken]
        self._position += len(view)
        self.end = max(self.end, self._position)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self.end = self._position if size is None else size
        return self.end

    def _pieces(self, count: int) -> Iterator[tuple[int, int, slice]]:
        """Yields page number, offset in the page, and slice of the data for the next `count` bytes."""
        done = 0
        while done < count:
            page, within = divmod(self._position + done, self.SIZE)
            size = min(self.SIZE - within, count - done)
            yield page, within, slice(done, done + size)
            done += size


class Hdf5Writer:
    """A new HDF5 file. `root` is its root group.

    HDF5 crashes at its end if one of its writes fails. So it only writes metadata, into memory. It tells the offsets of
    the values in the file, and `write` writes them there.
    """

    def __init__(self) -> None:
        self._pages = _Pages()
        self.root = h5py().File(self._pages, "w")
        self._arrays: list[tuple[int, np.ndarray]] = []  # with offsets in the file

    def group(self, parent: Any, name: str) -> Any:
        """Get or create a group. Raises UnreadableError if an array has this name."""
        with asking():
            return parent.require_group(name)

    def attribute(self, group: Any, name: str, value: Any) -> None:
        with asking():
            group.attrs[name] = value

    def array(self, group: Any, name: str, array: np.ndarray) -> None:
        """Add a contiguous dataset. The array must not change until `write`."""
        library = h5py()
        settings = library.h5p.create(library.h5p.DATASET_CREATE)
        settings.set_alloc_time(library.h5d.ALLOC_TIME_EARLY)
        settings.set_fill_time(library.h5d.FILL_TIME_NEVER)
        settings.set_obj_track_times(False)
        with asking():
            kind = library.h5t.py_create(array.dtype, logical=True)
            space = library.h5s.create_simple(array.shape) if array.shape else library.h5s.create(library.h5s.SCALAR)
            offset = library.h5d.create(group.id, name.encode(), kind, space, settings).get_offset()
        if array.size:
            self._arrays.append((offset, array))

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
            for page, content in sorted(self._pages.pages.items()):
                file.seek(page * _Pages.SIZE)
                file.write(content)
            for offset, array in self._arrays:
                file.seek(offset)
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            file.truncate(self._pages.end)


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
