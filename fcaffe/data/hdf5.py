"""Rows of HDF5 files, for HDF5Data and HDF5Output layers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data.lines import numbered_lines
from fcaffe.errors import DataError
from fcaffe.hdf5 import check_sizes, h5py, member, names_in, new_file, opened, shape_of, values_of
from fcaffe.input_files import asking
from fcaffe.proto.binary import HDF5_MAGIC

KINDS = {"f": "FLOAT", "i": "INTEGER", "u": "INTEGER"}  # of NumPy: in HDF5's words


def read_hdf5_list(source: str) -> list[str]:
    """Read the file names of a list: separated by white space, relative to the working directory. Raises DataError."""
    lines = (line for _, line in numbered_lines(source, "list of HDF5 files"))
    first = next(lines)
    if HDF5_MAGIC.startswith(first):
        raise DataError(f'"{source}" is an HDF5 file itself; give the name of a text file that lists such files')
    names = [os.fsdecode(name) for line in (first, *lines) for name in line.split()]
    return names


def read_rows(path: str, names: Sequence[str]) -> list[np.ndarray]:
    """Read datasets as float32. Raises DataError if they have different numbers of rows, or none."""
    with opened(path, DataError) as file:
        datasets = _find_all(file, names)
        check_sizes(datasets, unwritten=True)
        for dataset in datasets:
            log.hdf5_datatype(KINDS[dataset.dtype.kind])
        return [values_of(dataset, np.float32) for dataset in datasets]


def shapes_of_rows(path: str, names: Sequence[str]) -> list[tuple[int, ...]]:
    """The shapes of the datasets that `read_rows` would read."""
    with opened(path, DataError) as file:
        return [dataset.shape for dataset in _find_all(file, names)]


def write_rows(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write float32 datasets to a new file, which replaces an old one. Raises DataError."""
    with new_file(path, "rows of blobs", DataError) as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=np.ascontiguousarray(array, np.float32))


def _find_all(file: Any, names: Sequence[str]) -> list[Any]:
    datasets = [_find(file, name) for name in names]
    if len({dataset.shape[0] for dataset in datasets}) > 1 or not datasets[0].shape[0]:
        shapes = ", ".join(f"{name}: {dataset.shape}" for name, dataset in zip(names, datasets, strict=True))
        raise DataError(f"its datasets must have equally many rows, and some ({shapes})")
    return datasets


def _find(file: Any, name: str) -> Any:
    dataset = member(file, name)
    if not isinstance(dataset, h5py().Dataset):
        found = ", ".join(sorted(names_in(file))) or "nothing"
        raise DataError(f'it has no dataset "{name}", the name of a top; it has {found}')
    with asking():
        kind = dataset.dtype
    if kind.kind not in KINDS:
        raise DataError(f'dataset "{name}" has values of type {kind}; only numbers are read')
    if not shape_of(dataset):
        raise DataError(f'dataset "{name}" is a single value; at least one axis is needed')
    return dataset


class Hdf5Rows:
    """The rows of the HDF5 files of a list, read cyclically. One file at a time is in memory.

    With `shuffle`, each round permutes the files, and the rows within each file. The permutations depend on `seed` and
    the round only. They are not Caffe's, which uses the C library's rand() without a seed.
    """

    def __init__(self, source: str, names: Sequence[str], shuffle: bool, seed: int) -> None:
        log.loading_hdf5_list(source)
        self.files = read_hdf5_list(source)
        log.number_of_hdf5_files(len(self.files))
        self.names = names
        self.shuffle = shuffle
        self.seed = seed
        self.row_shapes: list[tuple[int, ...]] = []  # of each dataset
        self._loaded: int | None = None  # index of the file in memory
        self._arrays: list[np.ndarray] = []
        self._counts: list[int] = []  # of the rows of each file
        for path in self.files:  # at once, not when its turn comes
            shapes = shapes_of_rows(path, names)
            self._check_shapes(path, [shape[1:] for shape in shapes])
            self._counts.append(shapes[0][0])
        self.seek(0)

    def read(self, count: int) -> list[np.ndarray]:
        parts = []
        missing = count
        while missing:
            if self._row == len(self._rows):
                self._next_file()
            chosen = self._rows[self._row : self._row + missing]
            parts.append([array[chosen] for array in self._arrays])
            self._row += len(chosen)
            missing -= len(chosen)
        self.position += count
        return parts[0] if len(parts) == 1 else [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]

    def seek(self, position: int) -> None:
        """Continue as if `position` rows had been read."""
        self.position = position
        self._round, position = divmod(position, sum(self._counts))
        self._turn, order = 0, self._order()
        while position >= self._counts[order[self._turn]]:
            position -= self._counts[order[self._turn]]
            self._turn += 1
        self._load()
        self._row = position

    def _next_file(self) -> None:
        self._turn += 1
        if self._turn == len(self.files):
            self._round, self._turn = self._round + 1, 0
        self._load()
        self._row = 0

    def _load(self) -> None:
        index = self._order()[self._turn]
        if index != self._loaded:
            self._loaded, self._arrays = None, []
            self._arrays = read_rows(self.files[index], self.names)
            self._check_shapes(self.files[index], [array.shape[1:] for array in self._arrays])
            self._loaded = index
        self._rows = np.arange(len(self._arrays[0]))
        if self.shuffle:
            self._rows = self._generator(1 + index).permutation(self._rows)

    def _check_shapes(self, path: str, shapes: list[tuple[int, ...]]) -> None:
        self.row_shapes = self.row_shapes or shapes
        for name, shape, first in zip(self.names, shapes, self.row_shapes, strict=True):
            if shape != first:
                raise DataError(f'HDF5 file "{path}": rows of "{name}" have the shape {shape}, those before {first}')

    def _order(self) -> list[int]:
        """The indices of the files in the order of this round."""
        order = np.arange(len(self.files))
        return (self._generator(0).permutation(order) if self.shuffle else order).tolist()

    def _generator(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self._round, purpose])
