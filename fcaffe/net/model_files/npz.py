"""Models as NumPy's .npz: arrays <layer>/<k> and <layer>/<k>/diff, and one, `net`, with all that is not numbers."""

from __future__ import annotations

import io
import os
import re
import zipfile
from typing import Any

import numpy as np

from fcaffe.data.hdf5 import MOST_PACKED
from fcaffe.errors import FcaffeError, SnapshotError
from fcaffe.net.model_files.model import Model, StoredLayer, check_text, layer_from_outline, put_values
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import replacing, without_fork_fields

_NET = "net"  # the NetParameter, its blobs without values, as bytes
_VALUES = re.compile(r"(.+)/(\d{1,9})(/diff)?")


def read(path: str | os.PathLike[str]) -> Model:
    """The model in a .npz; one that NumPy users made has no `net`, and its layers come by name. SnapshotError."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(info.file_size for info in archive.infolist()) > MOST_PACKED * os.path.getsize(path):
                raise SnapshotError("it says that it holds more than it can; it is damaged")
            arrays = {info.filename.removesuffix(".npy"): _array(archive, info) for info in archive.infolist()}
        param = pb.NetParameter.FromString(arrays.pop(_NET, np.zeros(0, np.uint8)).tobytes())
        check_text(param)
        layers = [layer_from_outline(layer) for layer in param.layer]
    except FcaffeError as problem:
        raise SnapshotError(f"{path}: {problem}") from problem
    except Exception as problem:  # of zipfile, zlib, NumPy and protobuf
        message = " ".join(str(problem).split())
        raise SnapshotError(f"cannot read {path} ({message}): it is damaged, cut off or no .npz of arrays") from problem
    by_name = {layer.name: layer for layer in layers if layer.blobs}
    values: dict[str, dict[tuple[int, str], np.ndarray]] = {}
    for name, array in arrays.items():
        match = _VALUES.fullmatch(name)
        if match is None:
            raise SnapshotError(f'{path}: array "{name}" is no blob; the names are <layer>/<k> and <layer>/<k>/diff')
        values.setdefault(match[1], {})[int(match[2]), "diff" if match[3] else "data"] = array
    for name, given in values.items():
        if name not in by_name:
            layers.append(by_name.setdefault(name, StoredLayer(pb.LayerParameter(name=name))))
        try:
            put_values(by_name[name], given)
        except SnapshotError as problem:
            raise SnapshotError(f"{path}: {problem}") from None
    param.ClearField("layer")
    return Model(param, layers)


def write(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model with whatever values it has."""
    net = pb.NetParameter()
    net.CopyFrom(model.param)
    net.layer.extend(layer.outline() for layer in model.layers)
    arrays: dict[str, Any] = {_NET: np.frombuffer(without_fork_fields(net).SerializeToString(), np.uint8)}
    for layer in model.layers:
        for index, blob in enumerate(layer.blobs):
            for name, array in ((f"{layer.name}/{index}", blob.data), (f"{layer.name}/{index}/diff", blob.diff)):
                if name in arrays:
                    raise SnapshotError(f'a .npz has no place for two layers with the name "{layer.name}"; rename one')
                if array is not None:
                    arrays[name] = array
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """A member as an array. Its size must be what its header says, so nobody allocates for a damaged header."""
    with archive.open(info) as member:
        start = io.BytesIO(member.read(1 << 16))
        version = np.lib.format.read_magic(start)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(start)
        size = dtype.itemsize * int(np.prod(shape, dtype=object))
        if dtype.kind not in "fiu" or info.file_size != start.tell() + size:
            raise SnapshotError(f"{info.filename} holds {info.file_size} bytes, not {size} of the shape {shape}")
        content = start.read() + member.read()
    values = np.frombuffer(content, dtype)
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)
