"""HDF5 files, by the optional package h5py: asked so that nothing in a damaged or hostile one does harm, and written so
that a full disk does none.

Every call of h5py that may fail because of what is in a file goes through this module, which turns what it raises into
an Hdf5Error of one line. Errors of our own code pass through as they are.
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
from fcaffe.input_files import require_file

# HDF5 packs about a thousandfold at most; a file that says it holds more is damaged, and nobody allocates for it.
MOST_PACKED = 2000
REMEDY = "fcaffe reads what is in the file itself: copy the values into it"


class Hdf5Error(FcaffeError):
    """What is wrong with a file, which whoever has opened it names."""


class UnreadableError(Hdf5Error):
    """What a library said of a file that is damaged, or of a name that the file cannot take."""


def h5py() -> Any:
    """The h5py module; without it a DataError says what to install."""
    try:
        import h5py
    except ImportError as problem:
        raise DataError("HDF5 files need h5py: pip install 'fcaffe[hdf5]' (or pip install h5py)") from problem
    return h5py


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """For one call of a library that reads a file: what it raises, of many kinds, becomes an UnreadableError."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as problem:
        raise UnreadableError(" ".join(str(problem).split()) or type(problem).__name__) from problem


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The h5py.File at `path`, to read."""
    library = h5py()
    try:
        require_file(path)
    except OSError as problem:
        raise UnreadableError(problem.strerror) from problem
    with asking():
        file = library.File(path, "r")
    with file:
        yield file


# --- what is in a file ------------------------------------------------------------------------------------------------


def names_in(group: Any) -> list[str]:
    """The names of a group's members, in the order that HDF5 keeps them in."""
    with asking():
        names = list(group)
    for name in names:
        if name != name.encode(errors="replace").decode():
            raise Hdf5Error(f"{group.name} has a member with the name {name!r}, which is no text; the file is damaged")
    return names


def member(group: Any, path: str) -> Any:
    """The group or dataset at a path below a group; None if there is none.

    A link to another place or file on the way is refused by name: what it leads to is not part of the file.
    """
    library = h5py()
    found = group
    for name in path.strip("/").split("/"):
        if not isinstance(found, library.Group):
            return None
        links, key = found.id.links, name.encode("utf-8", "surrogateescape")
        with asking():
            if not links.exists(key):
                return None
            kind = links.get_info(key).type
            aim = None if kind == library.h5l.TYPE_HARD else links.get_val(key)
        if aim is not None:
            raise Hdf5Error(f'"{_below(found, name)}" is a link to {_aim(aim)}; {REMEDY}')
        with asking():
            found = found[name]
    return found


def attribute(group: Any, name: str, kinds: str) -> Any:
    """A group's attribute, a single value whose type is of one of NumPy's `kinds`; None if there is none."""
    with asking():
        kept = group.attrs.get_id(name) if name in group.attrs else None
        known = kept is not None and kept.shape == () and kept.dtype.kind in kinds
        value = group.attrs[name] if known else None
    if kept is not None and not known:
        raise Hdf5Error(f'attribute "{name}" of "{group.name}" is not what fcaffe writes; the file is damaged')
    return value


def address(group: Any) -> int:
    """Where an object lies in its file, by which it is known again."""
    with asking():
        return h5py().h5o.get_info(group.id).addr


def check_own(dataset: Any) -> None:
    """Refuse a dataset whose values are in other files, and what is none."""
    what = f'"{dataset.name}"'
    if not isinstance(dataset, h5py().Dataset):
        raise Hdf5Error(f"{what} is no array of numbers; the file is damaged")
    with asking():
        external, virtual = dataset.external, dataset.is_virtual
        sources = sorted({source.file_name for source in dataset.virtual_sources()}) if virtual else []
    if external:
        raise Hdf5Error(f"the values of {what} are in another file, {_list(place[0] for place in external)}; {REMEDY}")
    if virtual:
        raise Hdf5Error(f"{what} is a virtual dataset, put together from {_list(sources)}; {REMEDY}")


def shape_of(dataset: Any) -> tuple[int, ...]:
    """Of a dataset of numbers that are in the file itself; Hdf5Error if they are not, or not numbers."""
    check_own(dataset)
    with asking():
        shape, kind = dataset.shape, dataset.dtype.kind
    if shape is None or kind not in "fiu":
        raise Hdf5Error(f'"{dataset.name}" is no array of numbers; the file is damaged')
    return shape


def check_sizes(datasets: Iterable[Any], unwritten: bool = False) -> None:
    """Refuse datasets that cannot be whole in their file, or that are too large for the memory of this machine.

    So nobody allocates for numbers that are only claimed, or that are packed so as to fill the memory. One to which
    nothing was ever written, and which reads as zeros, is whole only if `unwritten` says so.
    """
    total = 0
    for dataset in datasets:
        shape = shape_of(dataset)
        with asking():
            stored, whole = dataset.id.get_storage_size(), os.path.getsize(dataset.file.filename)
            size = math.prod(shape) * max(dataset.dtype.itemsize, 4)  # no smaller once it is float32
        if size and (not (stored or unwritten) or size > MOST_PACKED * whole):
            raise Hdf5Error(f'"{dataset.name}" of shape {shape} is not in the file; it is damaged')
        total += size
    memory = obtainable_bytes(np)
    if memory is not None and total > memory:
        raise Hdf5Error(f"what it says that it holds takes {total} bytes, and this machine has {memory} free")


def values_of(dataset: Any, dtype: Any = None) -> np.ndarray:
    """A dataset of numbers, whole; `check_sizes` has been asked before."""
    with asking():
        return np.asarray(dataset[()] if dtype is None else dataset.astype(dtype)[()])


def read_array(dataset: Any) -> np.ndarray:
    """A dataset of numbers, whole. One that claims more than its file can hold is refused before memory is taken."""
    check_sizes([dataset])
    return values_of(dataset)


def _below(group: Any, name: str) -> str:
    return f"{group.name.rstrip('/')}/{name}"


def _aim(aim: Any) -> str:
    """What a link leads to: of an external link, file and place."""
    if isinstance(aim, tuple):
        return f'"{os.fsdecode(aim[1])}" in the file "{os.fsdecode(aim[0])}"'
    return f'"{os.fsdecode(aim)}"'


def _list(names: Iterable[Any]) -> str:
    return ", ".join(f'"{os.fsdecode(name)}"' for name in names)


# --- writing ----------------------------------------------------------------------------------------------------------


class _Pages(io.RawIOBase):
    """A file in memory for h5py to write to; parts that nobody has written take no memory."""

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
        """The pages of the next `count` bytes: number, where in the page, which of the bytes."""
        done = 0
        while done < count:
            page, within = divmod(self._position + done, self.SIZE)
            size = min(self.SIZE - within, count - done)
            yield page, within, slice(done, done + size)
            done += size


class Hdf5Writer:
    """A new HDF5 file. `root` is its root group.

    HDF5 itself only ever writes to memory, and only what describes the values: when a write of its own fails, such as
    on a full disk, it crashes at the end. It is asked where in the file the values belong, and `write` puts them there.
    """

    def __init__(self) -> None:
        self._pages = _Pages()
        self.root = h5py().File(self._pages, "w")
        self._arrays: list[tuple[int, np.ndarray]] = []  # with their places in the file

    def group(self, parent: Any, name: str) -> Any:
        """The group of this name, made if need be. Hdf5Error if the name is taken by an array."""
        with asking():
            return parent.require_group(name)

    def attribute(self, group: Any, name: str, value: Any) -> None:
        with asking():
            group.attrs[name] = value

    def array(self, group: Any, name: str, array: np.ndarray) -> None:
        """A dataset in one piece; `array` must stay as it is until `write`."""
        library = h5py()
        settings = library.h5p.create(library.h5p.DATASET_CREATE)
        settings.set_alloc_time(library.h5d.ALLOC_TIME_EARLY)
        settings.set_fill_time(library.h5d.FILL_TIME_NEVER)
        settings.set_obj_track_times(False)
        with asking():
            kind = library.h5t.py_create(array.dtype, logical=True)
            space = library.h5s.create_simple(array.shape) if array.shape else library.h5s.create(library.h5s.SCALAR)
            place = library.h5d.create(group.id, name.encode(), kind, space, settings).get_offset()
        if array.size:
            self._arrays.append((place, array))

    def string(self, group: Any, name: str, text: str) -> None:
        """A string as C programs read it: of fixed length, with a zero at the end."""
        library = h5py()
        content = text.encode() + b"\0"
        kind = library.h5t.C_S1.copy()
        kind.set_size(len(content))
        kind.set_strpad(library.h5t.STR_NULLTERM)
        dataset = library.h5d.create(group.id, name.encode(), kind, library.h5s.create(library.h5s.SCALAR))
        dataset.write(library.h5s.ALL, library.h5s.ALL, np.array(content), mtype=kind)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write all to the file, and be done. Raises OSError."""
        self.root.close()
        with open(path, "wb") as file:
            for page, content in sorted(self._pages.pages.items()):
                file.seek(page * _Pages.SIZE)
                file.write(content)
            for place, array in self._arrays:
                file.seek(place)
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            file.truncate(self._pages.end)


@contextlib.contextmanager
def new_file() -> Iterator[Hdf5Writer]:
    """A file to fill in the body of the `with`, and to write at its end."""
    writer = Hdf5Writer()
    try:
        yield writer
    finally:
        writer.root.close()
