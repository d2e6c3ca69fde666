"""Reads ONNX files that may be damaged or hostile. Allocates nothing by a size that a file merely claims."""

from __future__ import annotations

import os
from typing import Any

from fcaffe.errors import SnapshotError
from fcaffe.input_files import UnreadableError, asking, read_input, reading
from fcaffe.onnx.library import onnx
from fcaffe.proto.wire import FIXED64, LENGTH, VARINT, read_varint

ROOM = 4, 16 << 20  # memory beyond the content of a file: a multiple of its size, and a constant number of bytes
PART = 100  # bytes of memory for a string or message
# The repeated fields of ModelProto, GraphProto, NodeProto and ValueInfoProto, by their numbers.
_NODES: dict[int, Any] = {5: {5: {}}}
_VALUES: dict[int, Any] = {2: {1: {2: {1: {}}}}}
_FIELDS: dict[int, Any] = {
    7: {1: _NODES, 5: {}, 11: _VALUES, 12: _VALUES, 13: _VALUES, 15: {1: {}, 2: {}}},
    25: {7: _NODES},
}


def read_model(path: str | os.PathLike[str]) -> tuple[Any, int]:
    """Read an ONNX file, and the external data of its constants from the model's folder.

    Returns:
        The ModelProto, and the number of bytes that were read.

    Raises:
        SnapshotError: in one line.
    """
    with reading(path, SnapshotError, "ONNX file"):
        content = read_input(path)
    try:
        with asking():
            if _parts(memoryview(content), _FIELDS, len(content)) * PART > ROOM[0] * len(content) + ROOM[1]:
                raise SnapshotError("it has more parts than any model of its size; it is damaged")
            model = onnx().ModelProto.FromString(content)
            return model, len(content) + _external_data(model, os.path.dirname(os.path.abspath(path)))
    except UnreadableError as problem:
        raise SnapshotError(f"cannot read {path} as an ONNX file: {str(problem)[:600]}") from problem


def _parts(message: memoryview, fields: dict[int, Any], most: int) -> int:
    """The number of strings and messages in a serialised message and in these fields of it; `most` at most.

    An empty one has two bytes in the file, and about a hundred in memory.
    """
    at = count = 0
    while at < len(message) and count < most:
        key, at = read_varint(message, at)
        if key & 7 == LENGTH:
            size, at = read_varint(message, at)
            inner = fields.get(key >> 3)
            count += 1 + (_parts(message[at : at + size], inner, most - count) if inner is not None else 0)
            at += size
        else:
            at = read_varint(message, at)[1] if key & 7 == VARINT else at + (8 if key & 7 == FIXED64 else 4)
    return count


def _external_data(model: Any, folder: str) -> int:
    """Load the external data, and return their size. onnx refuses files outside of the folder, and wrong offsets."""
    attributes = (attribute for node in model.graph.node for attribute in node.attribute if attribute.HasField("t"))
    tensors = [*model.graph.initializer, *(attribute.t for attribute in attributes)]
    outside = [tensor for tensor in tensors if tensor.data_location == onnx().TensorProto.EXTERNAL]
    paths, total = set(), 0
    for tensor in outside:
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        path = os.path.join(folder, location)
        if not os.path.isfile(path):
            raise SnapshotError(f'constant "{tensor.name}" is in "{location}", which is no file in the model\'s folder')
        paths.add(os.path.realpath(path))
        try:
            with asking():
                onnx().external_data_helper.load_external_data_for_tensor(tensor, folder)
        except UnreadableError as problem:
            raise SnapshotError(f'constant "{tensor.name}" in "{location}": {str(problem)[:400]}') from problem
        total += len(tensor.raw_data)
        if total > 2 * sum(map(os.path.getsize, paths)):
            raise SnapshotError(f"its constants are the same values of {location} many times; export each once")
    return total
