"""Error messages for prototxts: position, message, what was expected, and similar names.

protobuf's parser gives the position. Its text differs between versions and does not name the message. So the text is
tokenised again up to that position, which gives the message and the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.text_format import ParseError

from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.forks import PYTHON_INSTEAD, fork_of_enum_value, forks_of_number
from fcaffe.suggestions import nearest

_TOKEN = re.compile(
    r"""
    \#[^\n]*                              # comment
    | "(?:\\.|[^"\\\n])*"? | '(?:\\.|[^'\\\n])*'?
    | [\w.+-]+                            # name or number
    | \S
    """,
    re.VERBOSE,
)
_NO_CHARACTER = re.compile("[\ud800-\udfff]")  # a byte that is not UTF-8, decoded by surrogateescape
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = "abfnrtvxXuU01234567?\\'\""
_NAME = re.compile(r"[A-Za-z_]\w*$")

_WANTED = {
    FieldDescriptor.TYPE_INT32: f"a whole number from {-(2**31)} to {2**31 - 1}",
    FieldDescriptor.TYPE_INT64: f"a whole number from {-(2**63)} to {2**63 - 1}",
    FieldDescriptor.TYPE_UINT32: f"a whole number from 0 to {2**32 - 1}",
    FieldDescriptor.TYPE_FLOAT: "a number",
    FieldDescriptor.TYPE_DOUBLE: "a number",
    FieldDescriptor.TYPE_BOOL: "true or false",
    FieldDescriptor.TYPE_STRING: "a string in quotes",
    FieldDescriptor.TYPE_BYTES: "a string in quotes",
    FieldDescriptor.TYPE_MESSAGE: 'a message in "{ }"',
}

# Names of fields in other programs, by message.
_ELSEWHERE = {
    "SolverParameter": {
        "learning_rate": "base_lr",
        "lr": "base_lr",
        "lr_schedule": "lr_policy",
        "optimizer": "type",
        "iterations": "max_iter",
        "num_iterations": "max_iter",
        "max_steps": "max_iter",
        "seed": "random_seed",
        "beta1": "momentum",
        "beta2": "momentum2",
        "epsilon": "delta",
        "decay": "weight_decay",
        "l2": "weight_decay",
        "clip_norm": "clip_gradients",
        "grad_clip": "clip_gradients",
        "milestones": "stepvalue",
        "device": "solver_mode",
    },
}


@dataclass
class _Open:
    """A message whose closing brace has not been reached."""

    descriptor: Any
    offset: int = 0
    field: str = ""  # the last field named in it
    expects: str = "field"  # then "colon" (or a brace), then "value"; "list" between [ and ]


def explain(text: str, error: ParseError, descriptor: Any) -> str:
    """The text `line:column: what is wrong` for an error in parsing `text` as a message of this descriptor."""
    line, column = error.GetLine(), error.GetColumn()
    if line is None or column is None:
        return f" {error}"
    lines = text.split("\n")
    offset = sum(len(before) + 1 for before in lines[: line - 1]) + column - 1
    said = str(error).removeprefix(f"{line}:{column} : ").removeprefix(f"'{lines[line - 1]}': ").rstrip(".")
    if said in ('Expected "}"', 'Expected ">"'):  # at the end of the file
        unclosed = _walk(text, len(text), descriptor)[0][-1]
        what = f'this "{text[unclosed.offset]}" of {unclosed.descriptor.name} is never closed'
        return f"{position(text, unclosed.offset)}: {what}"
    return f"{line}:{column}: {_what(*_walk(text, offset, descriptor), said)}"


def position(text: str, offset: int) -> str:
    """The position `line:column` of an offset."""
    return f"{text.count(chr(10), 0, offset) + 1}:{offset - text.rfind(chr(10), 0, offset)}"


def explain_bytes(text: str) -> str | None:
    """As `explain`, for a byte outside of strings and comments that is not UTF-8. None if there is none."""
    for match in _TOKEN.finditer(text):
        if match[0][0] not in "#\"'" and (bad := _NO_CHARACTER.search(match[0])):
            return f"{position(text, match.start() + bad.start())}: a byte that is not UTF-8"
    return None


def explain_escapes(text: str) -> str | None:
    """As `explain`, for an invalid escape in a string. None if there is none.

    Caffe's parser refuses it. Python's accepts it, with the backslash.
    """
    for match in _TOKEN.finditer(text):
        for escape in _ESCAPE.finditer(match[0]) if match[0][0] in "\"'" else ():
            if escape[1] not in _ESCAPED:
                what = f'"{escape[0]}" in a string is no escape; for a backslash itself write two'
                return f"{position(text, match.start() + escape.start())}: {what}"
    return None


def _walk(text: str, end: int, descriptor: Any) -> tuple[list[_Open], str]:
    """The messages that are open at offset `end`, outermost first, and the token there ("" at the end of the text).

    The text before `end` must be valid.
    """
    stack = [_Open(descriptor)]
    for match in _TOKEN.finditer(text):
        token, here = match[0], stack[-1]
        if token.startswith("#"):
            continue
        if match.start() >= end:
            return stack, token
        if token in "{<":
            inner = here.descriptor.fields_by_name[here.field].message_type
            here.expects = "list" if here.expects == "list" else "field"
            stack.append(_Open(inner, match.start()))
        elif token in "}>":
            stack.pop()
        elif token == ":":
            here.expects = "value"
        elif token == "[" and here.expects != "field":
            here.expects = "list"
        elif token == "]" or here.expects == "value":
            here.expects = "field"
        elif here.expects == "field" and _NAME.match(token):
            here.field, here.expects = token, "colon"
    return stack, ""


def _what(stack: list[_Open], token: str, said: str) -> str:
    here = stack[-1]
    message = here.descriptor
    field = message.fields_by_name.get(here.field)
    found = _quoted(token)
    if "multiple" in said:
        return f'{message.name} takes "{here.field}" once; here it is given again'
    if "codec" in said:
        return f"{message.name}.{here.field}: the string is not UTF-8"
    if here.expects == "field":
        if _NAME.match(token) and token not in message.fields_by_name:
            return _unknown_field(stack, token)
        if token == "}" and len(stack) == 1:
            return 'this "}" closes nothing'
        return f"expected a field of {message.name}, found {found}"
    if here.expects == "colon":
        wanted = "{" if field.message_type else ":"
        return f'expected "{wanted}" after "{here.field}" of {message.name}, found {found}'
    if field.enum_type and (_NAME.match(token) or token.isdigit()):
        return _unknown_value(field, token)
    if token[:1] in ("'", '"') and field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        if len(token) < 2 or token[-1] != token[0]:
            return f"{message.name}.{here.field}: the string {token[:40]} has no closing quote on its line"
        return f"{message.name}.{here.field}: {said}"
    wanted = f"one of {_values(field)}" if field.enum_type else _WANTED[field.type]
    return f"{message.name}.{here.field} wants {wanted}, found {found}"


def _unknown_field(stack: list[_Open], name: str) -> str:
    message = stack[-1].descriptor
    what = f'{message.name} has no field named "{name[:40]}"'
    if any(name in outer.descriptor.fields_by_name for outer in stack[:-1]):
        return f'{what}; is a "}}" missing before it?'
    near = _ELSEWHERE.get(message.name, {}).get(name.lower()) or nearest(name, _caffes(message.fields))
    own = message.name in ("LayerParameter", "V1LayerParameter") and name.endswith("_param")
    of_layer = f"; if it is of a fork's layer, {PYTHON_INSTEAD}" if own else ""
    if near:
        return f'{what} (did you mean "{near}"?){of_layer}'
    solver, net = pb.SolverParameter.DESCRIPTOR, pb.NetParameter.DESCRIPTOR
    if message is solver and name in net.fields_by_name:
        return f"{what}; is this the prototxt of a net?"
    inner = [
        field.name for field in message.fields if field.message_type and name in _caffes(field.message_type.fields)
    ]
    if inner:
        return f"{what}; it belongs inside {' or '.join(inner)}"
    if message is net and name in solver.fields_by_name:
        return f"{what}; is this the prototxt of a solver?"
    return what + of_layer


def _unknown_value(field: Any, value: str) -> str:
    enum = field.enum_type
    fork = fork_of_enum_value(enum.name, value)
    remedy = f"{PYTHON_INSTEAD}, in a net of the present notation" if enum.name == "LayerType" else ""
    if fork:
        what = f'{enum.name}: "{value}" is a value of {fork}, which BVLC Caffe does not have'
        return f"{what}; {remedy}" if remedy else what
    near = nearest(value, _caffes(enum.values))
    hint = f'did you mean "{near}"?' if near else f"it has {_values(field)}"
    what = f'{field.containing_type.name}.{field.name}: {enum.name} has no value "{value[:40]}" ({hint})'
    return f"{what}; if it is a fork's, {remedy}" if remedy and not value.isdigit() else what


def _values(field: Any) -> str:
    return ", ".join(_caffes(field.enum_type.values))


def _caffes(known: Iterable[Any]) -> list[str]:
    """The names of the fields or enum values that are Caffe's own."""
    return [one.name for one in known if not forks_of_number(one.number)]


def _quoted(token: str) -> str:
    if not token:
        return "the end of the file"
    if token[0] in "\"'":
        return token[:40]
    return f'"{token[:40]}"'
