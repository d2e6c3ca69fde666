"""Reads ONNX files that may be damaged or hostile. Allocates nothing by a size that a file merely claims."""

from __future__ import annotations

import os
from typing import Any

from fcaffe.errors import SnapshotError
from fcaffe.input_files import UnreadableError, asking, read_input, reading
from fcaffe.onnx.library import onnx

ROOM = 4, 16 << 20  # memory beyond the content of a file: a multiple of its size, and a constant number of bytes


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
            model = onnx().ModelProto.FromString(content)
            return model, len(content) + _external_data(model, os.path.dirname(os.path.abspath(path)))
    except UnreadableError as problem:
        raise SnapshotError(f"cannot read {path} as an ONNX file: {str(problem)[:600]}") from problem


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
        tensor.data_location = onnx().TensorProto.DEFAULT
        total += len(tensor.raw_data)
        if total > 2 * sum(map(os.path.getsize, paths)):
            raise SnapshotError(f"its constants are the same values of {location} many times; export each once")
    return total
