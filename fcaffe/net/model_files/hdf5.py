"""Models in HDF5, laid out as Caffe has it: /data/<layer>/<k>, /diff/<layer>/<k>, a group for every layer.

Values that layers share are kept by their owner only. What Caffe leaves out, the layers' parameters and their order,
stands in attributes, which Caffe passes over; a file of Caffe's own reads as a model whose layers have names and blobs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from fcaffe.data.hdf5 import h5py
from fcaffe.errors import SnapshotError
from fcaffe.net.model_files.hdf5_file import read_array, reading, writing
from fcaffe.net.model_files.model import Model, StoredLayer, check_text, layer_from_outline, put_values, take_shared
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import without_fork_fields

_NET = "net"  # attribute of /data: the NetParameter without layers
_LAYER, _ORDER = "layer", "order"  # attributes of a layer's group
_LARGEST_ATTRIBUTE = 60000  # bytes; HDF5 takes a little more


def read(path: str | os.PathLike[str]) -> Model:
    """The model in an HDF5 file, all layers in order (by name in a file of Caffe's). Raises SnapshotError."""
    with reading(path) as file:
        data = _group(file, "data")
        if data is None:
            state = "iter" in file and "history" in file
            raise SnapshotError(
                "this is a solver state, not a model; give it as --snapshot" if state else "there is no model in it"
            )
        param = pb.NetParameter.FromString(_bytes(data, _NET))
        check_text(param)
        found: list[tuple[int, StoredLayer]] = []
        for name, group in _layers(data):
            layer = layer_from_outline(pb.LayerParameter.FromString(_bytes(group, _LAYER)))
            layer.param.name = layer.name or name
            values = {(index, "data"): array for index, array in _arrays(group)}
            if (diffs := _group(file, f"diff/{name}")) is not None:
                values |= {(index, "diff"): array for index, array in _arrays(diffs)}
            put_values(layer, values)
            found.append((int(group.attrs.get(_ORDER, len(found))), layer))
    model = Model(param, [layer for _, layer in sorted(found, key=lambda item: item[0])])
    take_shared(model)
    return model


def write(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model with whatever values it has; gradients go into /diff if any blob has some."""
    shared = {(id(layer), index): owner.blobs[place] for layer, index, owner, place in model.shared()}
    with_diffs = any(blob.diff is not None for layer in model.layers for blob in layer.blobs)
    _check_names(model)
    with writing(path) as file:
        data = file.create_group("data")
        _put_bytes(data, _NET, without_fork_fields(model.param))
        for order, layer in enumerate(model.layers):
            group = data.require_group(layer.name)
            group.attrs[_ORDER] = order
            _put_bytes(group, _LAYER, without_fork_fields(layer.outline()))
            diffs = file.require_group(f"diff/{layer.name}") if with_diffs else None
            for index, blob in enumerate(layer.blobs):
                owner = shared.get((id(layer), index))
                if blob.data is not None and not (owner and _same(owner.data, blob.data)):
                    group.create_dataset(str(index), data=blob.data)
                if diffs is not None and blob.diff is not None:
                    diffs.create_dataset(str(index), data=blob.diff)


def _layers(data: Any) -> Iterator[tuple[str, Any]]:
    """Name and group of every layer: a group with blobs, with our attribute, or with nothing in it.

    A name with slashes is a group within a group. Links that would lead out of the file or round in circles are passed
    over.
    """
    library = h5py()
    seen = set()
    waiting = [("", data)]
    while waiting:
        prefix, parent = waiting.pop(0)
        for key in parent:
            group = _hard(parent, key)
            if not isinstance(group, library.Group) or (address := library.h5o.get_info(group.id).addr) in seen:
                continue
            seen.add(address)
            name = prefix + key
            if _LAYER in group.attrs or not len(group) or any(one.isdecimal() for one in group):
                yield name, group
            waiting.append((f"{name}/", group))


def _arrays(group: Any) -> Iterator[tuple[int, np.ndarray]]:
    for key in group:
        if key.isdecimal() and len(key) < 10 and isinstance(dataset := _hard(group, key), h5py().Dataset):
            yield int(key), read_array(dataset)


def _group(group: Any, path: str) -> Any:
    """The group at this path, or None."""
    for key in path.split("/"):
        group = _hard(group, key) if isinstance(group, h5py().Group) else None
    return group if isinstance(group, h5py().Group) else None


def _hard(group: Any, key: str) -> Any:
    """A member of a group, or None if there is none or it is a link to another place or file."""
    return group[key] if isinstance(group.get(key, getlink=True), h5py().HardLink) else None


def _bytes(group: Any, name: str) -> bytes:
    return bytes(group.attrs.get(name, b""))


def _put_bytes(group: Any, name: str, message: Any) -> None:
    """Leave out what is too long for an attribute: the file is then like one of Caffe's."""
    content = message.SerializeToString()
    if 0 < len(content) <= _LARGEST_ATTRIBUTE:
        group.attrs[name] = np.void(content)


def _same(a: np.ndarray | None, b: np.ndarray) -> bool:
    """Bit for bit, also where there is no number."""
    if a is None or a.dtype != b.dtype or a.size != b.size:
        return False
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (a, b))
    return np.array_equal(first, second)


def _check_names(model: Model) -> None:
    names = set()
    for layer in model.layers:
        if not layer.name or not {"", ".", ".."}.isdisjoint(layer.name.split("/")):
            raise SnapshotError(f'HDF5 has no place for a layer with the name "{layer.name}"; give it another')
        if layer.name in names:
            raise SnapshotError(f'HDF5 has no place for two layers with the name "{layer.name}"; rename one')
        names.add(layer.name)
