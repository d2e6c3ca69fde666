"""Error messages for prototxts: position, protobuf's message, and the name that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from google.protobuf.text_format import ParseError

from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.forks import PYTHON_INSTEAD, fork_of_enum_value, forks_of_number
from fcaffe.suggestions import nearest

_UNKNOWN_FIELD = re.compile(r'Message type "caffe\.(.+)" has no field named "(.+)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "caffe\.(.+)" has no value (?:named|with number) (.+)')
_LONGEST = 200  # characters of protobuf's message, which quotes strings


def explain(text: str, error: ParseError) -> str:
    """Return `line:column: what is wrong` for an error in parsing `text`."""
    line, column = error.GetLine(), error.GetColumn()
    if line is None or column is None:
        return f" {error}"
    quoted = text.split("\n")[line - 1]
    said = str(error).removeprefix(f"{line}:{column} : ").removeprefix(f"'{quoted}': ").removeprefix("'': ")
    said = said.rstrip(".")
    if match := _UNKNOWN_FIELD.fullmatch(said):
        return f"{line}:{column}: {_unknown_field(_descriptor(match[1]), match[2])}"
    if match := _UNKNOWN_VALUE.fullmatch(said):
        return f"{line}:{column}: {_unknown_value(match[1], match[2])}"
    if said in ('Expected "}"', 'Expected ">"'):
        said += "; an opening brace before it is never closed"
    return f"{line}:{column}: {' '.join(said.split())[:_LONGEST]}"


def _descriptor(name: str) -> Any:
    """Return the descriptor of a message or enum of caffe.proto, such as PoolingParameter.PoolMethod."""
    outer, _, inner = name.partition(".")
    found = pb.DESCRIPTOR.message_types_by_name.get(outer) or pb.DESCRIPTOR.enum_types_by_name[outer]
    if not inner:
        return found
    return found.enum_types_by_name.get(inner) or found.nested_types_by_name[inner]


def _unknown_field(message: Any, name: str) -> str:
    net, solver, layer = (kind.DESCRIPTOR for kind in (pb.NetParameter, pb.SolverParameter, pb.LayerParameter))
    what = f'{message.name} has no field named "{name[:40]}"'
    near = nearest(name, _caffes(message.fields))
    own = message.name in ("LayerParameter", "V1LayerParameter") and name.endswith("_param")
    of_layer = f"; if it is of a fork's layer, {PYTHON_INSTEAD}" if own else ""
    if near:
        return f'{what} (did you mean "{near}"?){of_layer}'
    if message is solver and name in net.fields_by_name:
        return f"{what}; is this the prototxt of a net?"
    inner = [
        field.name for field in message.fields if field.message_type and name in _caffes(field.message_type.fields)
    ]
    if inner:
        return f"{what}; it belongs inside {' or '.join(inner)}"
    if message is net and name in solver.fields_by_name:
        return f"{what}; is this the prototxt of a solver?"
    if any(name in outer.fields_by_name for outer in (net, layer)):
        return f'{what}; is a "}}" missing before it?'
    return what + of_layer


def _unknown_value(name: str, value: str) -> str:
    enum, bare = _descriptor(name), value.strip("\"'")
    fork = fork_of_enum_value(enum.name, bare)
    remedy = f"{PYTHON_INSTEAD}, in a net of the present notation" if enum.name == "LayerType" else ""
    if fork:
        what = f'{enum.name}: "{bare}" is a value of {fork}, which BVLC Caffe does not have'
        return f"{what}; {remedy}" if remedy else what
    known = _caffes(enum.values)
    near = nearest(bare, known)
    if bare != value:
        hint = "write it without quotation marks" if bare in known else "it takes a name without quotation marks"
    else:
        hint = f'did you mean "{near}"?' if near else f"it has {', '.join(known)}"
    what = f'{name} has no value "{bare[:40]}" ({hint})'
    return f"{what}; if it is a fork's, {remedy}" if remedy and not bare.isdigit() else what


def _caffes(known: Iterable[Any]) -> list[str]:
    """Return the names of the fields or enum values that are Caffe's own."""
    return [one.name for one in known if not forks_of_number(one.number)]
