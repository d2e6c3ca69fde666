"""What is in an HDF5 file, asked so that nothing in a damaged or hostile one does harm."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fcaffe.engines.memory import obtainable_bytes
from fcaffe.hdf5.library import Hdf5Error, h5py
from fcaffe.input_files import MOST_PACKED, asking, opened_by

REMEDY = "fcaffe reads what is in the file itself: copy the values into it"


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The h5py.File at `path`, to read. Raises UnreadableError."""
    with opened_by(h5py().File, path) as file:
        yield file


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
        raise Hdf5Error(f"the values of {what} are in another file, {_list(name for name, _, _ in external)}; {REMEDY}")
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


def check_stored(dataset: Any, unwritten: bool = False) -> int:
    """The bytes that the values of a dataset take in memory. Raises Hdf5Error if the file is too small to hold them.

    A dataset without storage, which reads as zeros, is allowed only if `unwritten` is true.
    """
    shape = shape_of(dataset)
    with asking():
        stored, whole = dataset.id.get_storage_size(), os.path.getsize(dataset.file.filename)
        size = math.prod(shape) * max(dataset.dtype.itemsize, 4)  # no smaller once it is float32
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
    """What a link leads to: of an external link, the file and the path in it."""
    if isinstance(aim, tuple):
        return f'"{os.fsdecode(aim[1])}" in the file "{os.fsdecode(aim[0])}"'
    return f'"{os.fsdecode(aim)}"'


def _list(names: Iterable[Any]) -> str:
    return ", ".join(f'"{os.fsdecode(name)}"' for name in names)
