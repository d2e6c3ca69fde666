"""Models as NumPy's .npz: arrays <layer>/<k> and <layer>/<k>/diff, and one, `net`, with all that is not numbers."""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe.engines.memory import obtainable_bytes
from fcaffe.errors import SnapshotError
from fcaffe.input_files import MOST_PACKED, UnreadableError, asking, opened_by
from fcaffe.net.model_files.model import (
    Model,
    Places,
    StoredLayer,
    Unread,
    check_text,
    is_wanted,
    layer_from_outline,
    put_values,
)
from fcaffe.output_files import replacing
from fcaffe.proto import caffe_pb2 as pb

_NET = "net"  # the NetParameter, its blobs without values, as bytes
_VALUES = re.compile(r"(.+)/(\d{1,9})(/diff)?")


def read(path: str | os.PathLike[str], places: Places | None = None) -> Model:
    """The model in a .npz; one that NumPy users made has no `net`, and its layers come by name. SnapshotError.

    Values of blobs that the net with these `places` does not have are not read.
    """
    try:
        with opened_by(zipfile.ZipFile, path) as archive:
            return _read(archive, os.path.getsize(path), places)
    except UnreadableError as problem:
        raise SnapshotError(f"cannot read {path} ({problem}): it is damaged, cut off or no .npz of arrays") from problem
    except SnapshotError as problem:
        raise SnapshotError(f"{path}: {problem}") from problem


def _read(archive: zipfile.ZipFile, size: int, places: Places | None) -> Model:
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if sum(info.file_size for info in members.values()) > MOST_PACKED * size:
        raise SnapshotError("it says that it holds more than it can; it is damaged")
    outline = _array(archive, members.pop(_NET)) if _NET in members else np.zeros(0, np.uint8)
    try:
        param = pb.NetParameter.FromString(outline.tobytes())
    except DecodeError as problem:
        raise UnreadableError(f'its array "{_NET}" describes no net') from problem
    check_text(param)
    layers = [layer_from_outline(layer) for layer in param.layer]
    by_name = {layer.name: layer for layer in layers if layer.blobs}
    values: dict[str, dict[tuple[int, str], Any]] = {}
    claimed = 0
    for name, info in members.items():
        match = _VALUES.fullmatch(name)
        if match is None:
            raise SnapshotError(f'array "{name}" is no blob; the names are <layer>/<k> and <layer>/<k>/diff')
        if match[1] not in by_name:
            layers.append(by_name.setdefault(match[1], StoredLayer(pb.LayerParameter(name=match[1]))))
        index, shape = int(match[2]), _header(archive, info)[0]
        wanted = is_wanted(places, by_name[match[1]], index, shape)
        claimed += info.file_size * wanted
        if claimed > (obtainable_bytes(np) or claimed):
            raise SnapshotError(f"what it says that it holds takes {claimed} bytes, more than this machine has free")
        array = _array(archive, info) if wanted else Unread(shape)
        values.setdefault(match[1], {})[index, "diff" if match[3] else "data"] = array
    for name, given in values.items():
        put_values(by_name[name], given)
    param.ClearField("layer")
    return Model(param, layers)


def write(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model with whatever values it has."""
    arrays: dict[str, Any] = {_NET: np.frombuffer(model.outline(), np.uint8)}
    for layer in model.layers:
        for index, blob in enumerate(layer.blobs):
            for name, array in ((f"{layer.name}/{index}", blob.data), (f"{layer.name}/{index}/diff", blob.diff)):
                if name in arrays:
                    raise SnapshotError(f'a .npz has no place for two layers with the name "{layer.name}"; rename one')
                if array is not None:
                    arrays[name] = array
    with replacing(path, "model", SnapshotError) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, type and offset of a member's values. Its size must be what its header says, so nobody allocates
    for a damaged header."""
    with asking(), archive.open(info) as file:
        start = io.BytesIO(file.read(1 << 16))
        version = np.lib.format.read_magic(start)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(start)
    size = dtype.itemsize * math.prod(shape)
    if dtype.kind not in "fiu" or info.file_size != start.tell() + size:
        raise SnapshotError(f"{info.filename} holds {info.file_size} bytes, not {size} of the shape {shape}")
    return shape, fortran, dtype, start.tell()


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """A member as an array."""
    shape, fortran, dtype, start = _header(archive, info)
    with asking():
        values = np.frombuffer(archive.read(info), dtype, offset=start)
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)
