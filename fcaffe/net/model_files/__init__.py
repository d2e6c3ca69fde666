"""Models in files: .caffemodel, HDF5 (.caffemodel.h5), NumPy (.npz), safetensors, and compressed (.dcmodel). Whatever
the file, a model reads the same."""

from __future__ import annotations

import os

from fcaffe.net.model_files import caffemodel, dcmodel, hdf5, npz, safetensors
from fcaffe.net.model_files.model import Model, Places, StoredLayer, take_shared
from fcaffe.proto import file_start
from fcaffe.proto.binary import HDF5_MAGIC, ZIP_MAGIC

__all__ = ["Model", "Places", "StoredLayer", "read_model", "take_shared", "write_hdf5", "write_model"]

Path = str | os.PathLike[str]


def read_model(path: Path, places: Places | None = None) -> Model:
    """The model in a file, of the format that the file's first bytes tell. Layers are in the current notation.

    `places` are those of the net that it is for: blobs for which it has none may come without values.
    Raises SnapshotError for a file that is missing, damaged or of another kind.
    """
    start = file_start(path)
    if start.startswith(HDF5_MAGIC):
        return hdf5.read(path, places)
    if start.startswith(ZIP_MAGIC):
        return npz.read(path, places)
    if start.startswith(dcmodel.MAGIC):
        return dcmodel.read(path, places)
    if safetensors.is_safetensors(start):
        return safetensors.read(path, places)
    return caffemodel.read(path)


def write_model(path: Path, model: Model, nvidia: bool = False) -> None:
    """Write a model, whole or not at all, in the format that the name's ending tells (SnapshotError).

    `nvidia` is for .caffemodel files: blobs as raw data, which is what NVIDIA's fork writes.
    """
    name = os.fspath(path)
    if name.endswith(".h5"):
        hdf5.write(path, model)
    elif name.endswith(".npz"):
        npz.write(path, model)
    elif name.endswith(".safetensors"):
        safetensors.write(path, model)
    elif name.endswith(".dcmodel"):
        dcmodel.write(path, model)
    else:
        caffemodel.write(path, model, nvidia)


def write_hdf5(path: Path, model: Model) -> None:
    """Write a model as HDF5, whatever the name's ending."""
    hdf5.write(path, model)
