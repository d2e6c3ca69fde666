"""Models as safetensors files: tensors <layer>/<k> and <layer>/<k>/diff, and all that is not numbers in the metadata.

The format (github.com/huggingface/safetensors) is eight bytes with the length of a header, the header as JSON, and the
numbers. It can hold no code, so such files may come from anywhere.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import re
import struct
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe.errors import SnapshotError
from fcaffe.input_files import open_input, reading
from fcaffe.net.model_files.model import (
    Model,
    Places,
    StoredLayer,
    Unread,
    check_text,
    is_wanted,
    keyed,
    layer_from_outline,
    put_values,
)
from fcaffe.output_files import replacing
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.in_file import InFile, Source, Stretch

NET = "caffe.net"  # in the metadata: the NetParameter, its blobs without values, in binary form and base64

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
_CODES = {np.dtype(code): name for name, code in _DTYPES.items()}
_VALUES = re.compile(r"(.+)/(\d{1,9})(/diff)?")
_LARGEST_HEADER = 100_000_000  # bytes, as the format's own library has it


class Content(NamedTuple):
    """A file: its tensors, which stay in it until they are wanted, and its metadata."""

    tensors: dict[str, InFile]
    metadata: dict[str, str]


def is_safetensors(start: bytes) -> bool:
    """Whether a file with these first bytes is one: a length that is no text, and JSON behind it."""
    return len(start) > 9 and start[8:9] == b"{" and struct.unpack("<Q", start[:8])[0] <= _LARGEST_HEADER


def read_content(path: str | os.PathLike[str]) -> Content:
    """The tensors of any safetensors file. Raises SnapshotError."""
    with reading(path, SnapshotError):
        source = Source(open_input(path), path)
        size = source.file.seek(0, os.SEEK_END)
        source.file.seek(0)
        length = struct.unpack("<Q", source.file.read(8).ljust(8, b"\xff"))[0]
        if length > min(_LARGEST_HEADER, size - 8):
            raise SnapshotError(f"{path} is cut off, or no safetensors file")
        header = source.file.read(length)
    try:
        described = json.loads(header)
        metadata = {str(name): str(text) for name, text in described.pop("__metadata__", {}).items()}
        tensors = {name: _tensor(source, entry, 8 + length, size) for name, entry in described.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise SnapshotError(f"{path}: its header is damaged ({' '.join(str(problem).split())})") from problem
    return Content(tensors, metadata)


def read(path: str | os.PathLike[str], places: Places | None = None) -> Model:
    """The model in a file that `write` has made, or of tensors with such names. Raises SnapshotError.

    Values of blobs that the net with these `places` does not have are not read.
    """
    try:
        tensors, metadata = read_content(path)
        param = _outline(metadata.get(NET, ""))
        layers = [layer_from_outline(layer) for layer in param.layer]
        by_key = {key: layer for key, layer in keyed(layers) if layer.blobs}
        values: dict[str, dict[tuple[int, str], Any]] = {}
        for name, tensor in tensors.items():
            match = _VALUES.fullmatch(name)
            if match is None:
                raise SnapshotError(
                    f'tensor "{name}" is no blob; the names are <layer>/<k> and <layer>/<k>/diff. If it is a state '
                    "dict of PyTorch, fcaffe convert takes the net of the same architecture as --model"
                )
            if match[1] not in by_key:
                layers.append(by_key.setdefault(match[1], StoredLayer(pb.LayerParameter(name=match[1]))))
            wanted = is_wanted(places, by_key[match[1]], int(match[2]), tensor.shape)
            which = "diff" if match[3] else "data"
            values.setdefault(match[1], {})[int(match[2]), which] = tensor if wanted else Unread(tensor.shape)
        for key, given in values.items():
            put_values(by_key[key], given)
    except SnapshotError as problem:
        raise SnapshotError(f"{path}: {problem}" if str(path) not in str(problem) else str(problem)) from problem
    param.ClearField("layer")
    return Model(param, layers)


def write(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model with whatever values it has."""
    outline = base64.b64encode(model.outline()).decode("ascii")
    arrays = {
        f"{key}/{index}{ending}": values
        for key, layer in keyed(model.layers)
        for index, blob in enumerate(layer.blobs)
        for ending, values in (("", blob.data), ("/diff", blob.diff))
        if values is not None
    }
    write_tensors(path, arrays, {NET: outline})


def write_tensors(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write any arrays of float16, float32 and float64, with texts beside them."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _CODES[array.dtype.newbyteorder("<")],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight
    with replacing(path, "model", SnapshotError) as temporary, open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)


def _outline(text: str) -> Any:
    try:
        param = pb.NetParameter.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, binascii.Error, ValueError) as problem:
        raise SnapshotError(f'its metadata "{NET}" describe no net; the file is damaged') from problem
    check_text(param)
    return param


def _tensor(source: Source, entry: Any, begin: int, size: int) -> InFile:
    """One tensor of the header; ValueError if it is not within the file."""
    shape, (start, end) = tuple(map(int, entry["shape"])), map(int, entry["data_offsets"])
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"type {entry['dtype']} of a tensor is none of {', '.join(_DTYPES)}")
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    if min(shape, default=0) < 0 or not 0 <= start <= end <= size - begin:
        raise ValueError("a tensor lies outside the file")
    if math.prod(shape) * dtype.itemsize != end - start:
        raise ValueError(f"a tensor of shape {shape} has {end - start} bytes")
    return InFile(source, [Stretch(begin + start, end - start)], dtype, shape)
