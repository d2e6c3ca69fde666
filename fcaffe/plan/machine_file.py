"""Machines as JSON files, which users write by hand and `fcaffe plan --calibrate` writes as measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, replace
from typing import Any, TypeVar

from fcaffe.errors import UsageError
from fcaffe.output_files import replacing
from fcaffe.plan.devices import DEVICES, LINKS, Device, Link, find
from fcaffe.plan.machine import FCAFFE, MACHINES, TEXTBOOK, Machine, MeasuredNet, is_file
from fcaffe.suggestions import did_you_mean

MACHINE = "machine.json"  # what a calibration writes unless --out names another file
SOURCES = ("source", "efficiency_source")  # fields that files do not have
MAY_BE_ZERO = ("latency", "burst", "layer_seconds", "iteration_seconds", "update", "rest")

_Kind = TypeVar("_Kind")


def read_machine(name: str) -> Machine:
    """The machine of this name, or of the file. Raises UsageError."""
    if not is_file(name):
        return find(name, MACHINES, "machine")
    try:
        with open(name, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError) as problem:
        raise UsageError(f"cannot read the machine in {name}: {problem}") from problem
    return machine_from(content, name)


def machine_from(content: Any, path: str) -> Machine:
    """The machine that a file's content describes. Keys that are missing are as in the machine that it is `like`, or
    have their defaults. Raises UsageError."""
    given = dict(_object(path, content))
    like = given.pop("like", None)
    base = None if like is None else _known(f"{path}: like", like, MACHINES, "machine")
    if base is None and given.get("device") is None:
        raise UsageError(f"{path}: a machine needs a device, by name ({', '.join(DEVICES)}) or as an object")
    values = {"name": path, **_values(Machine, f"{path}: ", given), "source": path}
    return replace(base, **values) if base else Machine(**values)


def write_machine(machine: Machine, path: str) -> None:
    """Raises FcaffeError."""
    with replacing(path, "machine") as temporary:
        temporary.write_text(json.dumps(_without_sources(asdict(machine)), indent=1) + "\n", encoding="utf-8")


def parse_link(text: str, flag: str) -> Link:
    """A link by name, or as `1.5us,2.8GB/s`. Raises UsageError."""
    if "," not in text:
        return find(text, LINKS, "link")
    latency, _, bandwidth = text.partition(",")
    units = {"GB/s": 1e9, "MB/s": 1e6, "Gbit/s": 1e9 / 8, "Mbit/s": 1e6 / 8}
    seconds = {"us": 1e-6, "ms": 1e-3, "ns": 1e-9}
    try:
        return Link(text, _with_unit(latency, seconds), _with_unit(bandwidth, units), flag)
    except ValueError:
        raise UsageError(
            f"{flag} takes the name of a link ({', '.join(LINKS)}), or latency and bandwidth such as 1.5us,2.8GB/s, "
            f"not '{text}'"
        ) from None


def _with_unit(text: str, units: Mapping[str, float]) -> float:
    """Raises ValueError."""
    unit = next((unit for unit in units if text.endswith(unit)), "")
    number = float(text.removesuffix(unit)) * units.get(unit, 0.0)
    if not 0 < number < math.inf:
        raise ValueError(text)
    return number


def _without_sources(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_sources(one) for key, one in value.items() if one is not None and key not in SOURCES}
    return list(map(_without_sources, value)) if isinstance(value, list | tuple) else value


def _values(kind: type, prefix: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass, from an object's keys; null is as if the key were missing. `prefix` is the path of a
    key in the file without its name. Raises UsageError for keys and values that are wrong."""
    where = prefix.removesuffix(": ").removesuffix(".")
    known = {field.name: field for field in fields(kind) if field.name not in SOURCES}
    for key in value:
        if key not in known:
            raise UsageError(f"{where}: unknown key '{key}'{did_you_mean(key, known)}; known are {', '.join(known)}")
    return {key: _value(f"{prefix}{key}", key, known[key].type, one) for key, one in value.items() if one is not None}


def _value(where: str, key: str, kind: Any, value: Any) -> Any:
    """The value of a field, by its name or its type."""
    special = {"device": _device, "within": _link, "between": _link, "peak": _peak, "measured": _measured}
    if key in special:
        return special[key](where, value)
    if key == "speeds":
        return {net: _number(f"{where}.{net}", one) for net, one in _object(where, value).items()}
    if key == "layers":
        return {name: _pairs(f"{where}.{name}", one) for name, one in _object(where, value).items()}
    if key == "exchange" and value not in (TEXTBOOK, FCAFFE):
        raise _wrong(where, f"{TEXTBOOK} or {FCAFFE}", value)
    if key == "batches":
        if not isinstance(value, list) or not value or value != sorted({_count(where, batch) for batch in value}):
            raise _wrong(where, "whole numbers that grow", value)
        return value
    if kind.startswith("str"):
        return _text(where, value)
    return _count(where, value) if kind.startswith("int") else _number(where, value, key in MAY_BE_ZERO)


def _wrong(where: str, words: str, value: Any) -> UsageError:
    return UsageError(f"{where}: must be {words}, not {json.dumps(value)[:40]}")


def _object(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, "an object with keys and values in braces", value)
    return value


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "a text in quotes", value)
    return value


def _number(where: str, value: Any, may_be_zero: bool = False) -> float:
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    if not right or (value == 0 and not may_be_zero):
        raise _wrong(where, "a number that is not negative" if may_be_zero else "a number above 0", value)
    return float(value)


def _count(where: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(where, "a whole number from 1 on", value)
    return value


def _known(where: str, value: Any, known: Mapping[str, _Kind], noun: str) -> _Kind:
    return find(_text(where, value), known, noun)


def _described(kind: type[_Kind], where: str, value: Any, **defaults: Any) -> _Kind:
    """A dataclass from an object. Raises UsageError for a missing key."""
    given = {**defaults, **_values(kind, f"{where}.", _object(where, value))}
    needed = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]  # type: ignore[arg-type]
    if missing := [name for name in needed if name not in given]:
        raise UsageError(f"{where}: has no {missing[0]}; it needs {', '.join(set(needed) - defaults.keys())}")
    return kind(**given)


def _link(where: str, value: Any) -> Link:
    if isinstance(value, str):
        return find(value, LINKS, "link")
    return _described(Link, where, value, name="link", source=where)


def _device(where: str, value: Any) -> Device:
    if isinstance(value, str):
        return find(value, DEVICES, "device")
    by = where if isinstance(value, dict) and "efficiency" in value else "assumed"
    return _described(Device, where, value, name="device", source=where, efficiency_source=by)


def _peak(where: str, value: Any) -> Mapping[str, float]:
    speeds = value if isinstance(value, dict) else {"fp32": value}
    return {math: _number(f"{where}.{math}", speed) for math, speed in speeds.items()}


def _pairs(where: str, value: Any) -> list[tuple[float, float]]:
    if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise _wrong(where, "[forward, backward] in seconds for each batch", value)
    return [(_number(where, pair[0], True), _number(where, pair[1], True)) for pair in value]


def _measured(where: str, value: Any) -> tuple[MeasuredNet, ...]:
    if not isinstance(value, list):
        raise _wrong(where, "a list in brackets", value)
    nets = tuple(_described(MeasuredNet, f"{where}[{index}]", one) for index, one in enumerate(value))
    for index, net in enumerate(nets):
        if any(len(pairs) != len(net.batches) for pairs in net.layers.values()):
            raise UsageError(f"{where}[{index}]: each layer of {net.net} must have times for each of {len(net.batches)} batches")
    return nets
