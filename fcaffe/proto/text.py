"""Reads and writes prototxts. Errors have the position, protobuf's message, and the name that was probably meant."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from fcaffe.errors import CallError, ProtoError
from fcaffe.input_files import read_input, reading
from fcaffe.output_files import Kind, replacing
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.forks import PYTHON_INSTEAD, forks_of_number, warn_of_fork_fields
from fcaffe.proto.upgrade import upgrade_net, upgrade_solver
from fcaffe.suggestions import nearest

LARGEST = 8 * 2**20  # bytes; protobuf parses them in seconds, and a thousand layers have a megabyte


Source = str | os.PathLike[str] | Message  # the path of a prototxt, its text, or the message


def read_net(source: Source) -> pb.NetParameter:
    """Read the net of a prototxt, or copy it, and upgrade it to the current notation. Raises ProtoError, CallError."""
    param, name = _message(source, pb.NetParameter, "net")
    if not (param.layer or param.layers or param.input):
        raise ProtoError(f"{name} has no layers: name the prototxt of a net")
    upgrade_net(param, name)
    return param


def read_solver(source: Source) -> pb.SolverParameter:
    """Read the solver of a prototxt, or copy it, and upgrade it to the current notation. Raises ProtoError, CallError.

    The default snapshot_prefix is the path without its extension, or "solver". A folder as prefix is joined with that.
    """
    param, name = _message(source, pb.SolverParameter, "solver")
    if not param.ListFields():
        raise ProtoError(f"{name} is empty: name the prototxt of a solver")
    upgrade_solver(param, name)
    stem, _ = os.path.splitext(name)
    if not param.HasField("snapshot_prefix"):
        param.snapshot_prefix = stem
    elif os.path.isdir(param.snapshot_prefix):
        param.snapshot_prefix = os.path.join(param.snapshot_prefix, os.path.basename(stem))
    return param


def _message(source: Source, kind: Any, name: str) -> tuple[Any, str]:
    """A new message, and the path, or else `name`, for the log and errors."""
    if isinstance(source, Message) and source.DESCRIPTOR.name == kind.DESCRIPTOR.name:  # maybe of another caffe_pb2
        message = kind.FromString(source.SerializePartialToString())
        warn_of_fork_fields(message, name)
        return message, name
    if isinstance(source, str) and not os.path.exists(source) and any(sign in source for sign in ("{", "\n", ": ")):
        return parse_text(source, kind, name), name
    if isinstance(source, str | os.PathLike):
        return read_text(source, kind), os.fspath(source)
    what = f"a prototxt's path or text, or a {kind.DESCRIPTOR.name}"
    raise CallError(f"a {name} is {what}, not a {type(source).__name__}")


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
        renamed = _POOLING.sub(_one_number_an_axis, text)
        if renamed != text:
            return parse_text(renamed, message_class, name)
        raise ProtoError(f"{name}:{explain(text, error)}") from None
    missing = message.FindInitializationErrors()
    if missing:
        raise ProtoError(f"{name}: {missing[0]} is required, and missing")
    warn_of_fork_fields(message, name)
    return message


_POOLING = re.compile(r"\bpooling_param\s*:?\s*\{[^{}]*\}")


def _one_number_an_axis(pooling: re.Match[str]) -> str:
    """Give each repeated field its repeated form. Forks for N axes write poolings as Caffe writes convolutions."""
    text = pooling[0]
    for field in ("kernel_size", "stride", "pad"):
        if len(re.findall(rf"\b{field}\s*:", text)) > 1 or re.search(rf"\b{field}\s*:\s*\[", text):
            text = re.sub(rf"\b{field}\b", f"{field}_3d", text)
    return text


def _is_prototxt(path: str) -> bool:
    """Whether a file is the prototxt of a net or a solver."""
    for kind in (pb.NetParameter, pb.SolverParameter):
        with contextlib.suppress(ProtoError, text_format.ParseError):
            if text_format.Parse(text_of(path), kind()).ListFields():
                return True
    return False


PROTOTXT = Kind("prototxt", _is_prototxt)


def write_text(path: str | os.PathLike[str], message: Any, comment: str = "") -> None:
    """Write a prototxt, below a comment, completely or not at all. Raises ProtoError."""
    with replacing(path, "prototxt", ProtoError) as temporary:
        head = f"{comment}\n" if comment else ""
        temporary.write_text(head + text_format.MessageToString(message, as_utf8=True), encoding="utf-8")


_UNKNOWN_FIELD = re.compile(r'Message type "caffe\.(.+)" has no field named "(.+)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "caffe\.(.+)" has no value (?:named|with number) (.+)')
_COMMA = re.compile(r"(?<=[:\s])\d+,\d+\b")
_LONGEST = 200  # characters of protobuf's message, which quotes strings


def explain(text: str, error: text_format.ParseError) -> str:
    """Return `line:column: what is wrong` for an error in parsing `text`."""
    line, column = error.GetLine(), error.GetColumn()
    if line is None or column is None:
        return f" {error}"
    quoted = text.split("\n")[line - 1]
    said = str(error).removeprefix(f"{line}:{column} : ").removeprefix(f"'{quoted}': ").removeprefix("'': ")
    said = said.rstrip(".")
    for pair in _COMMA.finditer(quoted):
        if pair.start() < column <= pair.end():
            point, comma = pair[0].replace(",", "."), pair[0].replace(",", ", ")
            return f"{line}:{column}: {pair[0]} is no number; write {point}, or [{comma}] for a list"
    if match := _UNKNOWN_FIELD.fullmatch(said):
        message, name = _descriptor(match[1]), match[2]
        said = _missing_brace(text, line, column, message, name) or _unknown_field(message, name)
        return f"{line}:{column}: {said}"
    if match := _UNKNOWN_VALUE.fullmatch(said):
        return f"{line}:{column}: {_unknown_value(match[1], match[2])}"
    if said in ('Expected "}"', 'Expected ">"') and (opened := _open_messages(text, line, column)):
        said += f"; {opened[0][0]}, which begins on line {opened[0][1]}, is never closed"
    if said.startswith("Couldn't parse integer: [") and (field := re.search(r"(\w+)\s*:\s*$", quoted[: column - 1])):
        gpus = "; name several GPUs by --gpu 0,1" if field[1] == "device_id" else ""
        said = f"{field[1]} takes one number, not a list{gpus}"
    return f"{line}:{column}: {' '.join(said.split())[:_LONGEST]}"


_TOKEN = re.compile(r"""#.*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(\w+)\s*:?\s*[{<]|[}>]|\n""")


def _open_messages(text: str, line: int, column: int) -> list[tuple[str, int]]:
    """The messages that are open at a position, outermost first: name and line of each one's beginning."""
    before = "\n".join([*text.split("\n")[: line - 1], text.split("\n")[line - 1][: column - 1]])
    opened: list[tuple[str, int]] = []
    for token in _TOKEN.finditer(before):
        if token[1]:
            opened.append((token[1], before.count("\n", 0, token.start()) + 1))
        elif token[0] in "}>" and opened:
            opened.pop()
    return opened


def _missing_brace(text: str, line: int, column: int, message: Any, name: str) -> str:
    """The error about a field of an outer message, before which a brace is missing; "" for another error."""
    opened = _open_messages(text, line, column)
    is_message = re.match(r"\w+\s*:?\s*[{<]", text.split("\n")[line - 1][column - 1 :]) is not None
    outer = (pb.NetParameter, pb.LayerParameter, pb.SolverParameter)
    owners = [kind.DESCRIPTOR for kind in outer if kind.DESCRIPTOR is not message]
    fields = [owner.fields_by_name[name] for owner in owners if name in owner.fields_by_name]
    if not opened or not any((field.message_type is not None) == is_message for field in fields):
        return ""
    kind, began = opened[-1]
    inside = f"the {opened[0][0]} that begins on line {opened[0][1]}"
    where = f"{kind} of line {began}, in {inside}" if opened[1:] else inside
    return f'{message.name} has no field named "{name}": a "}}" is missing before line {line}, at the end of {where}'


def _descriptor(name: str) -> Any:
    """Return the descriptor of a message or enum of caffe.proto, such as PoolingParameter.PoolMethod."""
    outer, _, inner = name.partition(".")
    found = pb.DESCRIPTOR.message_types_by_name.get(outer) or pb.DESCRIPTOR.enum_types_by_name[outer]
    if not inner:
        return found
    return found.enum_types_by_name.get(inner) or found.nested_types_by_name[inner]


def _unknown_field(message: Any, name: str) -> str:
    net, solver = pb.NetParameter.DESCRIPTOR, pb.SolverParameter.DESCRIPTOR
    what = f'{message.name} has no field named "{name[:40]}"'
    near = nearest(name, _caffes(message.fields))
    own = message.name in ("LayerParameter", "V1LayerParameter") and name.endswith("_param")
    of_layer = f"; if it is of a fork's layer, {PYTHON_INSTEAD}" if own else ""
    if near:
        return f'{what} (did you mean "{near}"?){of_layer}'
    if message is solver and name in net.fields_by_name:
        return f"{what}; is this the prototxt of a net?"
    inner = [
        field
        for field in _caffes(message.fields)
        if (kind := message.fields_by_name[field].message_type) and name in _caffes(kind.fields)
    ]
    if inner:
        return f"{what}; it belongs inside {' or '.join(inner)}"
    if message is net and name in solver.fields_by_name:
        return f"{what}; is this the prototxt of a solver?"
    return what + of_layer


def _unknown_value(name: str, value: str) -> str:
    enum, bare = _descriptor(name), value.strip("\"'")
    known = _caffes(enum.values)
    near = nearest(bare, known)
    if bare != value:
        hint = "write it without quotation marks" if bare in known else "it takes a name without quotation marks"
    else:
        hint = f'did you mean "{near}"?' if near else f"it has {', '.join(known)}"
    what = f'{name} has no value "{bare[:40]}" ({hint})'
    if enum.name != "LayerType" or bare.isdigit():
        return what
    return f"{what}; if it is a fork's, {PYTHON_INSTEAD}, in a net of the present notation"


def _caffes(known: Iterable[Any]) -> list[str]:
    """Return the names of the fields or enum values that are Caffe's own."""
    return [one.name for one in known if not forks_of_number(one.number)]
