"""Model files: .caffemodel, HDF5 (.caffemodel.h5), NumPy (.npz, and packed .dcmodel) and safetensors.

A format is a module with two functions, and one line in `FORMATS`: `contents(path)` gives the `Contents` of a
file, and `write(path, model)` writes one. A model of every format reads the same. .caffemodel has a reader of its own.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from fcaffe.model_files.model import Model, StoredLayer, take_shared
from fcaffe.proto.binary import HDF5_MAGIC, ZIP_MAGIC, file_start

__all__ = ["Model", "StoredLayer", "read_model", "take_shared", "write_hdf5", "write_model"]

Path = str | os.PathLike[str]

LARGEST_HEADER = 100_000_000  # bytes of a safetensors file's JSON, as in the format's own library


class Format(NamedTuple):
    """A file format: how its first bytes are recognised, and its module, which is imported when it is needed."""

    recognises: Callable[[bytes], bool]
    module: str

    def load(self) -> Any:
        return importlib.import_module(self.module)


def is_safetensors(start: bytes) -> bool:
    """Whether a file with these first bytes is a safetensors file: a length, and the beginning of a JSON object."""
    return len(start) > 9 and start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= LARGEST_HEADER


def is_npz(start: bytes) -> bool:
    """Whether a file with these first bytes is a zip file whose first member is an array."""
    return start.startswith(ZIP_MAGIC) and start[30 : 30 + int.from_bytes(start[26:28], "little")].endswith(b".npy")


FORMATS = {  # by the ending of the file's name
    ".h5": Format(lambda start: start.startswith(HDF5_MAGIC), "fcaffe.model_files.hdf5"),
    ".npz": Format(is_npz, "fcaffe.model_files.npz"),
    ".safetensors": Format(is_safetensors, "fcaffe.model_files.safetensors"),
    ".dcmodel": Format(is_npz, "fcaffe.model_files.npz"),
}


def read_model(path: Path) -> Model:
    """Read a model of any format, which the first bytes tell. Layers are in the current notation.

    Raises SnapshotError for a file that is missing, damaged or of another kind.
    """
    start = file_start(path)
    for format in FORMATS.values():
        if format.recognises(start):
            from fcaffe.model_files.arrays import read_arrays

            model = read_arrays(format.load().contents, path)
            take_shared(model)  # a file may hold a shared blob only once
            return model
    from fcaffe.model_files import caffemodel

    return caffemodel.read(path)


def write_model(path: Path, model: Model, nvidia: bool = False) -> None:
    """Write a model completely or not at all, in the format of the name's ending. Raises SnapshotError.

    With `nvidia`, a .caffemodel holds blobs as raw data, as NVIDIA's fork writes them.
    """
    ending = os.path.splitext(os.fspath(path))[1]
    if ending in FORMATS:
        FORMATS[ending].load().write(path, model)
    else:
        from fcaffe.model_files import caffemodel

        caffemodel.write(path, model, nvidia)


def write_hdf5(path: Path, model: Model) -> None:
    """Write a model as HDF5, whatever the name's ending. Raises SnapshotError."""
    FORMATS[".h5"].load().write(path, model)
