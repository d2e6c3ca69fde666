"""The loop that reads and writes the formats that hold an outline of the net and named arrays.

A format only says how they are stored: it reads a file as `Contents`, and `read_arrays` builds the model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe import log
from fcaffe.engines.memory import obtainable_bytes
from fcaffe.errors import SnapshotError
from fcaffe.input_files import UnreadableError
from fcaffe.model_files.model import Model, StoredLayer, check_text
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.blobs import blob_shape

MOST_BLOBS = 1000  # of a layer

_NAME = re.compile(r"(.+)/(\d{1,9})(/diff)?")


class ArrayName(NamedTuple):
    """The name of an array: <layer>/<index> for values, <layer>/<index>/diff for gradients."""

    layer: str
    blob: int  # its index in the layer
    kind: str  # "data" or "diff"

    @classmethod
    def parse(cls, text: str) -> ArrayName:
        """Raises SnapshotError if the text is not such a name."""
        match = _NAME.fullmatch(text)
        if match is None:
            raise SnapshotError(f'"{text}" is no blob; the names are <layer>/<k> and <layer>/<k>/diff')
        return cls(match[1], int(match[2]), "diff" if match[3] else "data")

    def __str__(self) -> str:
        return f"{self.layer}/{self.blob}" + "/diff" * (self.kind == "diff")


class Contents(NamedTuple):
    """What a model file holds: the NetParameter with the shapes of all blobs, and the arrays."""

    outline: Any
    arrays: Mapping[ArrayName, np.ndarray]


def read_arrays(contents_of: Callable[[str | os.PathLike[str]], Contents], path: str | os.PathLike[str]) -> Model:
    """Read a model by a format's function. Raises SnapshotError, which names the file."""
    try:
        model = _model_of(contents_of(path))
    except UnreadableError as problem:
        raise SnapshotError(f"cannot read {path} ({problem}): it is missing, damaged or of another kind") from problem
    except SnapshotError as problem:
        raise SnapshotError(f"{path}: {problem}" if str(path) not in str(problem) else str(problem)) from problem
    if torn := [layer.name for layer in model.layers if _lacks_a_blob(layer)]:
        log.warning(
            f"{path} lacks some blobs of the layer(s) {', '.join(torn)}: other layers share them, or it is damaged"
        )
    return model


def _lacks_a_blob(layer: StoredLayer) -> bool:
    """Whether a blob that is not shared by name has no values, but a later one has."""
    specs = layer.param.param
    own = [blob for index, blob in enumerate(layer.blobs) if index >= len(specs) or not specs[index].name]
    have = [blob.data is not None for blob in own]
    return have != sorted(have, reverse=True)


def _model_of(contents: Contents) -> Model:
    """The model in a file. An array of a layer that is not in the outline adds the layer."""
    layers = [_layer_from_outline(layer) for layer in contents.outline.layer]
    by_key = dict(keyed(layers))
    described = {key: len(layer.blobs) for key, layer in by_key.items()}
    for name, values in contents.arrays.items():
        if name.layer not in by_key:
            layers.append(by_key.setdefault(name.layer, StoredLayer(pb.LayerParameter(name=name.layer))))
        layer = by_key[name.layer]
        if name.blob >= MOST_BLOBS:
            raise SnapshotError(
                f'layer "{layer.name}": {name.blob + 1} blobs are more than a layer can have; the file is damaged'
            )
        while len(layer.blobs) <= name.blob:
            layer.blobs.append(StoredBlob((), None))
        blob = layer.blobs[name.blob]
        if name.blob >= described.get(name.layer, 0) and blob.data is None and blob.diff is None:
            blob.shape = values.shape
        if values.shape != blob.shape:
            raise SnapshotError(
                f'layer "{layer.name}": {name.kind} {name.blob} has the shape {values.shape}, not {blob.shape}; '
                "the file is damaged"
            )
        setattr(blob, name.kind, values)
    contents.outline.ClearField("layer")
    return Model(contents.outline, layers)


def stored_arrays(model: Model) -> Iterator[tuple[ArrayName, np.ndarray]]:
    """Yields the arrays that the blobs of a model have, one at a time."""
    for key, layer in keyed(model.layers):
        for index, blob in enumerate(layer.blobs):
            for kind, values in (("data", blob.data), ("diff", blob.diff)):
                if values is not None:
                    yield ArrayName(key, index, kind), values


def check_memory(size: int) -> None:
    """Raise SnapshotError if a file's arrays of so many bytes do not fit into the free memory."""
    free = obtainable_bytes(np)
    if free is not None and size > free:
        raise SnapshotError(f"its arrays take {size} bytes, and this machine has {free} free")


def keyed(layers: Sequence[StoredLayer]) -> Iterator[tuple[str, StoredLayer]]:
    """Yields each layer with a unique key: its name, followed by #2, #3, ... for further layers of that name."""
    taken: set[str] = set()
    for layer in layers:
        key, number = layer.name, 1
        while key in taken:
            number += 1
            key = f"{layer.name}#{number}"
        taken.add(key)
        yield key, layer


def outline_from(content: bytes) -> Any:
    """The NetParameter of the bytes that `Model.outline` gave. Raises SnapshotError."""
    try:
        outline = pb.NetParameter.FromString(content)
    except DecodeError as problem:
        raise SnapshotError("its description of the net cannot be parsed; the file is damaged") from problem
    check_text(outline)
    return outline


def _layer_from_outline(outline: Any) -> StoredLayer:
    """The layer of an outline, with blobs that have no values yet."""
    check_text(outline)
    blobs = [StoredBlob(blob_shape(blob), None, legacy=blob.HasField("num")) for blob in outline.blobs]
    outline.ClearField("blobs")
    return StoredLayer(outline, blobs)
