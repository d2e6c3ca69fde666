"""Models in HDF5, in Caffe's layout: datasets /data/<layer>/<k> and /diff/<layer>/<k>, a group for every layer.

The file holds a shared blob once, with its owner. Attributes, which Caffe ignores, hold what Caffe's layout leaves out:
the parameters of the net and of each layer, and the order of the layers. A file that Caffe wrote gives a model whose
layers have names and blobs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe import hdf5
from fcaffe.errors import SnapshotError
from fcaffe.input_files import asking
from fcaffe.model_files.arrays import ArrayName, Contents, stored_arrays
from fcaffe.model_files.model import Model, check_text
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.forks import without_fork_fields

_NET = "net"  # attribute of /data: the NetParameter without layers
_LAYER, _ORDER = "layer", "order"  # attributes of a layer's group
_LARGEST_ATTRIBUTE = 60000  # bytes; HDF5 allows a little more


def contents(path: str | os.PathLike[str]) -> Contents:
    """The contents of an HDF5 file: layers in order, or by name in a file that Caffe wrote. Raises SnapshotError."""
    with hdf5.opened(path, SnapshotError) as file:
        data = _group(file, "data")
        if data is None:
            state = hdf5.member(file, "iter") is not None and hdf5.member(file, "history") is not None
            raise SnapshotError(
                "this is a solver state, not a model; give it as --snapshot" if state else "there is no model in it"
            )
        outlines: list[tuple[int, Any]] = []
        datasets: dict[ArrayName, Any] = {}
        for name, group in _layers(data):
            outline = _message(group, _LAYER, pb.LayerParameter)
            outline.name = name
            order = hdf5.attribute(group, _ORDER, "iu")
            outlines.append((len(outlines) if order is None else int(order), outline))
            for kind, parent in (("data", group), ("diff", _group(file, f"diff/{name}"))):
                for index, dataset in _datasets(parent) if parent is not None else ():
                    datasets[ArrayName(name, index, kind)] = dataset
        net = _message(data, _NET, pb.NetParameter)
        check_text(net)
        net.layer.extend(outline for _, outline in sorted(outlines, key=lambda item: item[0]))
        hdf5.check_sizes(datasets.values())
        return Contents(net, {name: hdf5.values_of(dataset) for name, dataset in datasets.items()})


def write(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model. /diff exists if any blob has gradients. Raises SnapshotError."""
    owners = {(layer.name, index): owner.blobs[owned] for layer, index, owner, owned in model.shared()}
    with_diffs = any(blob.diff is not None for layer in model.layers for blob in layer.blobs)
    check_names(model.layers)
    with hdf5.new_file(path, "model", SnapshotError) as file:
        data = file.create_group("data")
        _put_message(data, _NET, without_fork_fields(model.param))
        for order, layer in enumerate(model.layers):
            group = data.require_group(layer.name)
            group.attrs[_ORDER] = order
            _put_message(group, _LAYER, without_fork_fields(layer.outline()))
            if with_diffs:
                file.require_group(f"diff/{layer.name}")
        for name, values in stored_arrays(model):
            owner = owners.get((name.layer, name.blob)) if name.kind == "data" else None
            if owner is None or owner.data is None or owner.data.tobytes() != values.tobytes():
                file.require_group(f"{name.kind}/{name.layer}").create_dataset(str(name.blob), data=values)


def _layers(data: Any) -> Iterator[tuple[str, Any]]:
    """Yields name and group of every layer: a group with blobs, with the attribute "layer", or without members.

    A name with slashes is a group within a group. A group with several names is yielded once.
    """
    found: dict[str, Any] = {}
    with asking():
        data.visititems(found.__setitem__)
    for name, item in found.items():
        if isinstance(item, hdf5.h5py().Group):
            if hdf5.attribute(item, _LAYER, "V") is not None or not hdf5.names_in(item) or any(_datasets(item)):
                yield name, item
        elif "/" not in name:
            raise SnapshotError(f'"{item.name}" is no group with the blobs of a layer; it is no model')
    if not found:
        raise SnapshotError("there are no layers in it")


def _datasets(group: Any) -> Iterator[tuple[int, Any]]:
    for key in hdf5.names_in(group):
        dataset = hdf5.member(group, key)
        if dataset is None:
            raise SnapshotError(f'"{group.name}/{key}" is a link to nothing: the file is damaged')
        if key.isdecimal() and len(key) < 10 and isinstance(dataset, hdf5.h5py().Dataset):
            yield int(key), dataset


def _group(group: Any, path: str) -> Any:
    """The group at this path, or None."""
    found = hdf5.member(group, path)
    return found if isinstance(found, hdf5.h5py().Group) else None


def _message(group: Any, name: str, message_class: Any) -> Any:
    """The message in an attribute; an empty one if there is no such attribute."""
    try:
        return message_class.FromString(bytes(hdf5.attribute(group, name, "V") or b""))
    except DecodeError as problem:
        raise SnapshotError(f'attribute "{name}" of "{group.name}" cannot be read: it is damaged') from problem


def _put_message(group: Any, name: str, message: Any) -> None:
    """Write a message as an attribute. One that is too long is omitted, as in a file that Caffe wrote."""
    content = message.SerializeToString()
    if 0 < len(content) <= _LARGEST_ATTRIBUTE:
        group.attrs[name] = np.void(content)


def check_names(layers: Iterable[Any]) -> None:
    """Raise SnapshotError unless HDF5 can hold these layers, which have names and blobs."""
    blobs: dict[str, int] = {}
    for layer in layers:
        if "\0" in layer.name or not {"", ".", ".."}.isdisjoint(layer.name.split("/")):
            raise SnapshotError(f'HDF5 cannot hold a layer with the name "{layer.name}"; give it another')
        if layer.name in blobs:
            raise SnapshotError(f'HDF5 cannot hold two layers with the name "{layer.name}"; rename one')
        blobs[layer.name] = len(layer.blobs)
    for name in blobs:
        for outer, inner in itertools.pairwise(itertools.accumulate(name.split("/"), "{}/{}".format)):
            index = inner[len(outer) + 1 :]
            if index.isdecimal() and int(index) < blobs.get(outer, 0):
                raise SnapshotError(f'HDF5 cannot hold layers with the names "{outer}" and "{name}"; rename one')
