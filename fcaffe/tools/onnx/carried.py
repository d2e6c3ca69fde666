"""What of a Caffe model an ONNX graph has no place for, carried along in its properties, so that the way back is exact.

`caffe.net` is the NetParameter with the shapes of all blobs, in binary form and base64. `caffe.blob:<layer>/<k>` tells
of a blob that is no constant of this name: the name of the one that it is, behind `=`, or else NumPy's name of its type
and, behind `:`, its values in base64. Gradients are left behind, and so are layers that the exported net does not have.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe.errors import SnapshotError
from fcaffe.net.model_files import Model
from fcaffe.net.model_files.model import keyed, layer_from_outline
from fcaffe.proto import StoredBlob, without_fork_fields
from fcaffe.proto import caffe_pb2 as pb

NET = "caffe.net"
BLOB = "caffe.blob:"

Place = tuple[str, int]  # a layer's name and the index of one of its blobs


def carried(model: Model, names: Mapping[Place, str], constants: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The properties for a model of which the blobs at these places are constants of these names."""
    outline = pb.NetParameter()
    outline.CopyFrom(model.param)
    properties = {}
    for key, layer in keyed(model.layers):
        if layer.blobs and (layer.name, 0) not in names:
            continue
        outline.layer.append(layer.outline())
        for index, blob in enumerate(layer.blobs):
            place, own = names.get((layer.name, index), ""), f"{key}/{index}"
            values = blob.data
            same = place in constants and values is not None and constants[place].tobytes() == values.tobytes()
            if same and place != own:
                properties[BLOB + own] = f"={place}"
            elif not same and values is not None:
                properties[BLOB + own] = f"{values.dtype.str}:{_text(np.ascontiguousarray(values).tobytes())}"
    properties[NET] = _text(without_fork_fields(outline).SerializeToString())
    return properties


def uncarried(properties: Mapping[str, str], constants: Mapping[str, np.ndarray]) -> Model:
    """The model that was carried. Raises SnapshotError if the properties are damaged, or the constants others."""
    try:
        outline = pb.NetParameter.FromString(base64.b64decode(properties[NET], validate=True))
        layers = [layer_from_outline(layer) for layer in outline.layer]
        for key, layer in keyed(layers):
            layer.blobs = [
                _filled(blob, f"{key}/{index}", properties, constants) for index, blob in enumerate(layer.blobs)
            ]
    except (DecodeError, ValueError, TypeError) as problem:
        raise SnapshotError(f"its properties describe no net ({problem}); the file is damaged") from problem
    outline.ClearField("layer")
    return Model(outline, layers)


def _filled(
    blob: StoredBlob, name: str, properties: Mapping[str, str], constants: Mapping[str, np.ndarray]
) -> StoredBlob:
    told = properties.get(BLOB + name, f"={name}")
    if not told.startswith("="):
        kind, _, text = told.partition(":")
        values: Any = np.frombuffer(base64.b64decode(text, validate=True), np.dtype(kind))
    elif told[1:] in constants:
        values = constants[told[1:]]
    else:
        raise SnapshotError(f'the graph has no constant "{told[1:]}", which was blob {name}')
    if values.size != np.prod(blob.shape, dtype=int):
        raise SnapshotError(f"blob {name} has {values.size} values there, not those of the shape {blob.shape}")
    return StoredBlob(blob.shape, values.reshape(blob.shape), legacy=blob.legacy)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
