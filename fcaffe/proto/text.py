"""Reads and writes prototxts."""

import os
from typing import Any

from google.protobuf import text_format

from fcaffe.errors import ProtoError
from fcaffe.input_files import read_input, reading
from fcaffe.output_files import replacing
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.forks import warn_of_fork_fields
from fcaffe.proto.text_errors import explain
from fcaffe.proto.upgrade import upgrade_net, upgrade_solver

LARGEST = 8 * 2**20  # bytes; protobuf parses them in seconds, and a thousand layers have a megabyte


def read_net(path: str | os.PathLike[str]) -> pb.NetParameter:
    """Read the net of a prototxt, and upgrade it to the current notation. Raises ProtoError."""
    param = read_text(path, pb.NetParameter)
    if not (param.layer or param.layers or param.input):
        raise ProtoError(f"{path} has no layers: name the prototxt of a net")
    upgrade_net(param, os.fspath(path))
    return param


def read_solver(path: str | os.PathLike[str]) -> pb.SolverParameter:
    """Read the solver of a prototxt, and upgrade it to the current notation. Raises ProtoError.

    The default snapshot_prefix is the path without its extension. A folder as prefix is joined with that name.
    """
    param = read_text(path, pb.SolverParameter)
    upgrade_solver(param, os.fspath(path))
    stem, _ = os.path.splitext(os.fspath(path))
    if not param.HasField("snapshot_prefix"):
        param.snapshot_prefix = stem
    elif os.path.isdir(param.snapshot_prefix):
        param.snapshot_prefix = os.path.join(param.snapshot_prefix, os.path.basename(stem))
    return param


def read_text(path: str | os.PathLike[str], message_class: Any) -> Any:
    """Read the message of a prototxt, without upgrades. Raises ProtoError."""
    return parse_text(text_of(path), message_class, os.fspath(path))


def text_of(path: str | os.PathLike[str]) -> str:
    """Read the text of a prototxt. Bytes that are not UTF-8, as in comments, become U+FFFD. Raises ProtoError."""
    with reading(path, ProtoError, "prototxt file"):
        content = read_input(path, LARGEST)
    if b"\0" in content:
        raise ProtoError(f"{path} is a binary file; a prototxt (text) is wanted")
    return content.decode("utf-8-sig", "replace")


def parse_text(text: str, message_class: Any, name: str = "<string>") -> Any:
    """Parse a message. Raises ProtoError with the text `name:line:column: what`."""
    message = message_class()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise ProtoError(f"{name}:{explain(text, error)}") from None
    missing = message.FindInitializationErrors()
    if missing:
        raise ProtoError(f"{name}: {missing[0]} is required, and missing")
    warn_of_fork_fields(message, name)
    return message


def write_text(path: str | os.PathLike[str], message: Any) -> None:
    """Write a prototxt completely or not at all. Raises ProtoError."""
    with replacing(path, "prototxt", ProtoError) as temporary:
        temporary.write_text(text_format.MessageToString(message, as_utf8=True), encoding="utf-8")
