"""Models as safetensors files: one tensor for each ArrayName, and the outline in the metadata, base64-encoded.

The format (github.com/huggingface/safetensors) is eight bytes with the length of a header, the header as JSON, and the
values. It can hold no code, so files from unknown sources are safe to read.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import read_input, reading
from fcaffe.model_files import LARGEST_HEADER
from fcaffe.model_files.arrays import ArrayName, Contents, outline_from, stored_arrays
from fcaffe.model_files.model import Model
from fcaffe.output_files import replacing

NET = "caffe.net"  # key of the metadata

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1"}
_DTYPES |= {"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1"}
_CODES = {np.dtype(code): name for name, code in _DTYPES.items()}


def contents(path: str | os.PathLike[str]) -> Contents:
    """The contents of a file whose tensors have names of blobs. Raises SnapshotError."""
    with reading(path, SnapshotError):
        content = memoryview(read_input(path, most=1 << 40))
    length = int.from_bytes(content[:8], "little")
    if length > min(LARGEST_HEADER, len(content) - 8):
        raise SnapshotError("it is cut off, or no safetensors file")
    try:
        described = json.loads(bytes(content[8 : 8 + length]))
        net = base64.b64decode(described.pop("__metadata__", {}).get(NET, ""), validate=True)
        tensors = {name: _tensor(content[8 + length :], entry) for name, entry in described.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise SnapshotError(f"its header is damaged ({' '.join(str(problem).split())})") from problem
    try:
        arrays = {ArrayName.parse(name): array for name, array in tensors.items()}
    except SnapshotError as problem:
        hint = "If it is a state dict of PyTorch, convert an .onnx of the module instead"
        raise SnapshotError(f"{problem}. {hint}") from problem
    return Contents(outline_from(net), arrays)


def write(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model. Raises SnapshotError."""
    arrays = {str(name): values for name, values in stored_arrays(model)}
    header: dict[str, Any] = {"__metadata__": {NET: base64.b64encode(model.outline()).decode("ascii")}}
    at = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _CODES[array.dtype.newbyteorder("<")],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the values to eight bytes
    with replacing(path, "model", SnapshotError) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)


def _tensor(content: memoryview, entry: Any) -> np.ndarray:
    """The tensor of a header's entry. Raises ValueError if it is not within the content."""
    shape, (start, end) = tuple(map(int, entry["shape"])), map(int, entry["data_offsets"])
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"type {entry['dtype']} of a tensor is none of {', '.join(_DTYPES)}")
    if not 0 <= start <= end <= len(content) or min(shape, default=0) < 0:
        raise ValueError("a tensor lies outside the file")
    return np.frombuffer(content[start:end], _DTYPES[entry["dtype"]]).reshape(shape)
