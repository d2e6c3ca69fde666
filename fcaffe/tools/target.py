"""Targets: the part of Caffe that a toolchain reads, from a text file.

A line names a layer type that the toolchain takes, with conditions on its fields, or one that it does not take, with
the remedy. The type * stands for all that are not named. A # begins a comment.

    Convolution: convolution_param.group <= 2048; no convolution_param.dilation[1]
    Permute: permute_param.order = 0,2,3,1
    Eltwise: eltwise_param.operation = SUM | MAX; bottoms = 2
    no ReLU6: write it as min(x, 6) = x - ReLU(x - 6)
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcaffe import log
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.net.build.filter import filter_net
from fcaffe.net.registry import layer_types
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.text import read_text, text_of
from fcaffe.proto.upgrade import upgrade_net
from fcaffe.suggestions import did_you_mean

FOLDER = Path(__file__).parents[1] / "targets"
_LINE = re.compile(r"(no )?(\w+|\*)(?:\s*:\s*(.+))?")
_CONDITION = re.compile(r"(no )?([a-z]\w*(?:\.\w+)*(?:\[\d+\])?)(?:\s*(!?=|<=|>=)\s*(\S.*))?")
_ROUNDS_DOWN = {"round_mode": pb.PoolingParameter.FLOOR, "ceil_mode": False, "torch_pooling": True}


@dataclass(frozen=True)
class Condition:
    """A condition on a field of a layer: `relation` is =, !=, <=, >=, or "no" for a field that must not be set."""

    field: str
    relation: str
    wanted: tuple[str, ...] = ()  # alternatives; lists have commas

    def __str__(self) -> str:
        if self.field in ("bottoms", "tops") and self.relation == "=":
            return f"{' or '.join(self.wanted)} {self.field}"
        words = [self.field, self.relation, " or ".join(self.wanted)]
        return " ".join(words if self.wanted else words[1::-1])

    def problem(self, layer: Any) -> str:
        """The field with its values if they do not meet the condition, or ""."""
        values, given = values_of(layer, self.field)
        if self.relation == "no":
            met = not given
        elif self.relation == "=":
            met = ",".join(values) in self.wanted or all(value in self.wanted for value in values)
        elif self.relation == "!=":
            met = not set(values) & set(self.wanted)
        else:
            sign, limit = 1 if self.relation == "<=" else -1, float(self.wanted[0])
            met = all(sign * float(value) <= sign * limit for value in values)
        if met:
            return ""
        return (
            f"it has {values[0]} {self.field}"
            if self.field in ("bottoms", "tops")
            else f"{self.field} is {','.join(values)}"
        )


@dataclass(frozen=True)
class Target:
    """What a toolchain takes: conditions by layer type. `instead` has remedies for types that it does not take."""

    name: str
    types: dict[str, list[Condition]]
    instead: dict[str, str]

    def misfit(self, layer: Any) -> str:
        """The reason why a layer does not fit, and what would; "" if it fits."""
        if layer.type not in self.types and layer.type not in layer_types():
            return f"fcaffe knows no layer type {layer.type}{did_you_mean(layer.type, layer_types())}"
        if layer.type in self.instead or not self.types.keys() & {layer.type, "*"}:
            remedy = self.instead.get(layer.type, "")
            return f"{self.name} takes no {layer.type}{'; ' if remedy else ''}{remedy}"
        for condition in (*self.types.get("*", ()), *self.types.get(layer.type, ())):
            if found := condition.problem(layer):
                return f"{found}, and {self.name} takes {condition}"
        return ""

    def misfits(self, net: Any) -> dict[str, list[str]]:
        """The layers of a net that do not fit, by the reason."""
        found: dict[str, list[str]] = {}
        for layer in net.layer:
            if problem := self.misfit(layer):
                found.setdefault(problem, []).append(f'layer "{layer.name}" ({layer.type})')
        return found

    def fitted(self, net: Any, source: str) -> Any:
        """The net with poolings as this toolchain reads them. Raises FcaffeError for layers that do not fit."""
        made = with_rounding(net, self.rounding) if self.rounding else net
        if problems := self.misfits(made):
            each = (
                f"{first}{f' and {len(others)} more' if others else ''}: {problem}"
                for problem, (first, *others) in problems.items()
            )
            raise FcaffeError(f"{source} does not fit {self.name}: {'; '.join(each)}")
        return made

    @property
    def rounding(self) -> str:
        """The field of pooling_param that makes the size round down, or "" if the toolchain has none."""
        for field, value in _ROUNDS_DOWN.items():
            if not self.misfit(pb.LayerParameter(type="Pooling", bottom=["x"], pooling_param={field: value})):
                return field
        return ""


def with_rounding(net: pb.NetParameter, field: str) -> pb.NetParameter:
    """A net whose poolings have this field, `ceil_mode` or `torch_pooling`, instead of `round_mode`."""
    copy = pb.NetParameter()
    copy.CopyFrom(net)
    for layer in copy.layer:
        if layer.pooling_param.HasField("round_mode") and field != "round_mode":
            up = layer.pooling_param.round_mode == pb.PoolingParameter.CEIL
            layer.pooling_param.ClearField("round_mode")
            setattr(layer.pooling_param, field, up == (field == "ceil_mode"))
    return copy


def read_target(name: str) -> Target:
    """The target of this name, or in this file. Raises UsageError, ProtoError."""
    shipped = {path.stem: path for path in sorted(FOLDER.glob("*.txt"))}
    if name not in shipped and not os.path.exists(name):
        raise UsageError(
            f"there is no target or file '{name}'{did_you_mean(name, shipped)}; known are {', '.join(shipped)}"
        )
    types: dict[str, list[Condition]] = {}
    instead = {}
    path = shipped.get(name, Path(name))
    for number, line in enumerate(text_of(path).splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        parsed = _LINE.fullmatch(words)
        if parsed is None:
            raise UsageError(f"{path}:{number}: a line is TYPE, TYPE: CONDITIONS or no TYPE: REMEDY, not '{words}'")
        excluded, kind, rest = parsed.groups()
        if excluded:
            instead[kind] = rest or ""
        else:
            conditions = [_condition(one.strip(), f"{path}:{number}") for one in (rest or "").split(";") if one.strip()]
            types.setdefault(kind, []).extend(conditions)
    return Target(path.stem, types, instead)


def _condition(text: str, where: str) -> Condition:
    parsed = _CONDITION.fullmatch(text)
    if parsed is None or bool(parsed[1]) == bool(parsed[3]):
        raise UsageError(f"{where}: a condition is FIELD = VALUE, FIELD <= NUMBER or no FIELD, not '{text}'")
    condition = Condition(parsed[2], parsed[3] or "no", tuple(re.split(r"\s*\|\s*", parsed[4])) if parsed[4] else ())
    try:
        condition.problem(pb.LayerParameter())
    except (KeyError, ValueError) as problem:
        raise UsageError(f"{where}: '{text}' has an unknown field, or a limit that is no number") from problem
    return condition


def values_of(layer: Any, field: str) -> tuple[list[str], bool]:
    """The values of a field as a prototxt has them, by default if it is not set; and whether it is set.

    The field has the names of its messages in front, and may have an index: `reshape_param.shape.dim[0]`.
    """
    if field in ("bottoms", "tops"):
        return [str(len(layer.bottom if field == "bottoms" else layer.top))], True
    values: list[Any] = [layer]
    kind, given = None, False
    for part in field.split("."):
        name, _, index = part.rstrip("]").partition("[")
        kind = (kind.message_type if kind else layer.DESCRIPTOR).fields_by_name[name]
        messages, values, given = values, [], False
        for message in messages:
            value = getattr(message, name)
            repeated = hasattr(value, "extend")
            several = value[int(index) :][:1] if index else value if repeated else [value]
            given |= bool(several) if repeated else message.HasField(name)
            values += several
    assert kind is not None
    if kind.enum_type:
        return [kind.enum_type.values_by_number[one].name for one in values], given
    return [text_of_value(one) for one in values], given


def text_of_value(value: Any) -> str:
    """A value as a prototxt has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def misfits_of_file(path: str, target: Target, phase: int, level: int, stages: Sequence[str]) -> dict[str, list[str]]:
    """As `Target.misfits`, for the net of a prototxt. Fields of forks count as they are written."""
    param = read_text(path, pb.NetParameter)
    with log.quiet():
        upgrade_net(param, path, fork_fields=False)
    param.state.phase, param.state.level = phase, level
    param.state.stage.extend(stages)
    return target.misfits(filter_net(param))
