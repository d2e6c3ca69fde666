"""Metadata properties of an ONNX file that keep what its graph cannot hold, so that the Caffe model can be restored.

`caffe.net` is the NetParameter with the shapes of all blobs, serialised and base64-encoded. `caffe.blob:<layer>/<k>`
describes a blob that is no constant of that name. It is `=` and the name of another constant, or NumPy's name of the
type, `:`, and the values in base64. Gradients, and layers that the exported net does not have, are not stored.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.model_files import Model
from fcaffe.model_files.arrays import Contents, Packed, arrays_in, keyed, model_of, outline_from
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.forks import without_fork_fields

NET = "caffe.net"
BLOB = "caffe.blob:"

BlobKey = tuple[str, int]  # a layer's name and the index of one of its blobs


def properties_of(model: Model, names: Mapping[BlobKey, str], constants: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The properties for a model, some blobs of which are constants of the graph, by these names."""
    outline = pb.NetParameter()
    outline.CopyFrom(model.param)
    properties = {}
    for key, layer in keyed(model.layers):
        if layer.blobs and (layer.name, 0) not in names:
            continue
        outline.layer.append(layer.outline())
        for index, blob in enumerate(layer.blobs):
            constant, own = names.get((layer.name, index), ""), f"{key}/{index}"
            values = blob.data
            same = constant in constants and values is not None and constants[constant].tobytes() == values.tobytes()
            if same and constant != own:
                properties[BLOB + own] = f"={constant}"
            elif not same and values is not None:
                properties[BLOB + own] = f"{values.dtype.str}:{_text(np.ascontiguousarray(values).tobytes())}"
    properties[NET] = _text(without_fork_fields(outline).SerializeToString())
    return properties


def model_from(properties: Mapping[str, str], constants: Mapping[str, np.ndarray]) -> Model:
    """The model that `properties_of` described. Raises SnapshotError if something is damaged or missing."""
    try:
        outline = outline_from(base64.b64decode(properties[NET], validate=True))
        values = {
            name: _values(str(name), blob.shape, properties, constants)
            for name, blob in arrays_in(outline)
            if name.kind == "data"
        }
    except (ValueError, TypeError) as problem:
        raise SnapshotError(f"its properties describe no net ({problem}); the file is damaged") from problem
    arrays = {name: Packed(array.shape, array.nbytes, array.view) for name, array in values.items()}
    return model_of(Contents(outline, arrays))


def _values(
    name: str, shape: tuple[int, ...], properties: Mapping[str, str], constants: Mapping[str, np.ndarray]
) -> np.ndarray:
    described = properties.get(BLOB + name, f"={name}")
    kind, _, content = described.partition(":")
    if not described.startswith("="):
        values = np.frombuffer(base64.b64decode(content, validate=True), np.dtype(kind))
    elif described[1:] in constants:
        values = constants[described[1:]]
    else:
        raise SnapshotError(f'the graph has no constant "{described[1:]}", which was blob {name}')
    if values.size != np.prod(shape, dtype=int):
        raise SnapshotError(f"blob {name} has {values.size} values there, not those of the shape {shape}")
    return values.reshape(shape)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
