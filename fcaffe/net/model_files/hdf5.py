"""Models in HDF5, laid out as Caffe has it: /data/<layer>/<k>, /diff/<layer>/<k>, a group for every layer.

Values that layers share are kept by their owner only. What Caffe leaves out, the layers' parameters and their order,
stands in attributes, which Caffe passes over; a file of Caffe's own reads as a model whose layers have names and blobs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe.errors import SnapshotError
from fcaffe.hdf5.library import h5py
from fcaffe.hdf5.reading import address, attribute, check_sizes, member, names_in, shape_of, values_of
from fcaffe.hdf5.snapshots import reading, writing
from fcaffe.hdf5.writing import Hdf5Writer
from fcaffe.net.model_files.model import (
    Model,
    Places,
    StoredLayer,
    Unread,
    check_text,
    is_wanted,
    layer_from_outline,
    put_values,
    take_shared,
)
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import without_fork_fields

_NET = "net"  # attribute of /data: the NetParameter without layers
_LAYER, _ORDER = "layer", "order"  # attributes of a layer's group
_LARGEST_ATTRIBUTE = 60000  # bytes; HDF5 takes a little more


def read(path: str | os.PathLike[str], places: Places | None = None) -> Model:
    """The model in an HDF5 file, all layers in order (by name in a file of Caffe's). Raises SnapshotError.

    Values of blobs that the net with these `places` does not have are not read.
    """
    with reading(path) as file:
        data = _group(file, "data")
        if data is None:
            state = member(file, "iter") is not None and member(file, "history") is not None
            raise SnapshotError(
                "this is a solver state, not a model; give it as --snapshot" if state else "there is no model in it"
            )
        param = _message(data, _NET, pb.NetParameter)
        check_text(param)
        found: list[tuple[int, StoredLayer, dict[tuple[int, str], Any]]] = []
        for name, group in _layers(data):
            layer = layer_from_outline(_message(group, _LAYER, pb.LayerParameter))
            layer.param.name = layer.name or name
            datasets = {(index, "data"): dataset for index, dataset in _datasets(group)}
            if (diffs := _group(file, f"diff/{name}")) is not None:
                datasets |= {(index, "diff"): dataset for index, dataset in _datasets(diffs)}
            order = attribute(group, _ORDER, "iu")
            found.append((len(found) if order is None else int(order), layer, datasets))
        wanted = {
            dataset.name
            for _, layer, datasets in found
            for (index, _), dataset in datasets.items()
            if is_wanted(places, layer, index, shape_of(dataset))
        }
        check_sizes(dataset for _, _, datasets in found for dataset in datasets.values() if dataset.name in wanted)
        for _, layer, datasets in found:
            put_values(
                layer,
                {
                    key: values_of(dataset) if dataset.name in wanted else Unread(shape_of(dataset))
                    for key, dataset in datasets.items()
                },
            )
    model = Model(param, [layer for _, layer, _ in sorted(found, key=lambda item: item[0])])
    take_shared(model)
    return model


def write(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model with whatever values it has; gradients go into /diff if any blob has some."""
    shared = {(id(layer), index): owner.blobs[owned] for layer, index, owner, owned in model.shared()}
    with_diffs = any(blob.has_diff for layer in model.layers for blob in layer.blobs)
    _check_names(model)
    with writing(path, "model") as file:
        data = file.group(file.root, "data")
        _put_message(file, data, _NET, without_fork_fields(model.param))
        for order, layer in enumerate(model.layers):
            group = file.group(data, layer.name)
            file.attribute(group, _ORDER, order)
            _put_message(file, group, _LAYER, without_fork_fields(layer.outline()))
            diffs = file.group(file.root, f"diff/{layer.name}") if with_diffs else None
            for index, blob in enumerate(layer.blobs):
                owner = shared.get((id(layer), index))
                values = blob.data
                if values is not None and not (owner and _same(owner.data, values)):
                    file.array(group, str(index), values)
                if diffs is not None and (values := blob.diff) is not None:
                    file.array(diffs, str(index), values)


def _layers(data: Any) -> Iterator[tuple[str, Any]]:
    """Name and group of every layer: a group with blobs, with our attribute, or with nothing in it.

    A name with slashes is a group within a group. A group that has been met before, as one that holds itself is, counts
    once.
    """
    library = h5py()
    seen = set()
    waiting = [("", data)]
    while waiting:
        prefix, parent = waiting.pop(0)
        for key in names_in(parent):
            group = member(parent, key)
            if not isinstance(group, library.Group) or address(group) in seen:
                continue
            seen.add(address(group))
            name, names = prefix + key, names_in(group)
            if attribute(group, _LAYER, "V") is not None or not names or any(one.isdecimal() for one in names):
                yield name, group
            waiting.append((f"{name}/", group))


def _datasets(group: Any) -> Iterator[tuple[int, Any]]:
    for key in names_in(group):
        if key.isdecimal() and len(key) < 10 and isinstance(dataset := member(group, key), h5py().Dataset):
            yield int(key), dataset


def _group(group: Any, path: str) -> Any:
    """The group at this path, or None."""
    found = member(group, path)
    return found if isinstance(found, h5py().Group) else None


def _message(group: Any, name: str, message_class: Any) -> Any:
    """The message in an attribute; an empty one if there is no such attribute."""
    try:
        return message_class.FromString(bytes(attribute(group, name, "V") or b""))
    except DecodeError as problem:
        raise SnapshotError(f'attribute "{name}" of "{group.name}" cannot be read: it is damaged') from problem


def _put_message(file: Hdf5Writer, group: Any, name: str, message: Any) -> None:
    """Leave out what is too long for an attribute: the file is then like one of Caffe's."""
    content = message.SerializeToString()
    if 0 < len(content) <= _LARGEST_ATTRIBUTE:
        file.attribute(group, name, np.void(content))


def _same(a: np.ndarray | None, b: np.ndarray) -> bool:
    """Whether both have the same bits; so NaN equals NaN."""
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
