"""Machines as JSON files, which users write by hand and `fcaffe plan --calibrate` writes as measured."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, replace
from typing import Any, TypeVar

from fcaffe.errors import UsageError
from fcaffe.output_files import replacing
from fcaffe.plan.devices import DEVICES, LINKS, Device, Link, find
from fcaffe.plan.machine import FCAFFE, MACHINES, TEXTBOOK, Machine
from fcaffe.suggestions import did_you_mean

MACHINE = "machine.json"  # what a calibration writes unless --out names another file
SOURCES = ("source", "efficiency_source")  # fields that files do not have
MAY_BE_ZERO = ("latency", "burst", "layer_seconds")
_Kind = TypeVar("_Kind")
WORDS = {"str": "a text in quotes", "int": "a whole number from 1 on", "float": "a number above 0"}


def read_machine(name: str) -> Machine:
    """The machine of this name, or of the file. Raises UsageError."""
    if not (os.path.exists(name) or name.endswith(".json") or os.sep in name):
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
    base = None if like is None else find(str(like), MACHINES, "machine")
    if base is None and given.get("device") is None:
        raise UsageError(f"{path}: a machine needs a device, by name ({', '.join(DEVICES)}) or as an object")
    values = {"name": path, **_values(Machine, path, ": ", given), "source": path}
    return replace(base, **values) if base else Machine(**values)


def write_machine(machine: Machine, path: str) -> None:
    """Raises FcaffeError."""
    with replacing(path, "machine") as temporary:
        temporary.write_text(json.dumps(_without_sources(asdict(machine)), indent=1) + "\n", encoding="utf-8")


def _without_sources(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_sources(one) for key, one in value.items() if one is not None and key not in SOURCES}
    return value


def _values(kind: type, where: str, dot: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass, from the keys of an object; null is as if the key were missing. Raises UsageError."""
    types = {field.name: str(field.type) for field in fields(kind) if field.name not in SOURCES}
    for key in given:
        if key not in types:
            raise UsageError(f"{where}: unknown key '{key}'{did_you_mean(key, types)}; known are {', '.join(types)}")
    return {key: _value(f"{where}{dot}{key}", key, types[key], one) for key, one in given.items() if one is not None}


def _value(where: str, key: str, kind: str, value: Any) -> Any:
    """The value of a field, by its type: a number, a text, or an object of such."""
    if kind in ("Link", "Device"):
        return _described(where, value, Link, LINKS) if kind == "Link" else _described(where, value, Device, DEVICES)
    if key == "peak" and not isinstance(value, dict):
        value = {"fp32": value}
    if key in ("peak", "speeds"):
        return {name: _value(f"{where}.{name}", name, "float", one) for name, one in _object(where, value).items()}
    kind = kind.partition(" ")[0]  # of "float | None"
    right = isinstance(value, {"str": str, "int": int}.get(kind, int | float)) and not isinstance(value, bool)
    if right and kind != "str":
        right = 0 <= value < math.inf and (value > 0 or key in MAY_BE_ZERO)
    if not right:
        raise _wrong(where, "a number that is not negative" if key in MAY_BE_ZERO else WORDS[kind], value)
    if key == "exchange" and value not in (TEXTBOOK, FCAFFE):
        raise _wrong(where, f"{TEXTBOOK} or {FCAFFE}", value)
    return value


def _wrong(where: str, words: str, value: Any) -> UsageError:
    return UsageError(f"{where}: must be {words}, not {json.dumps(value)[:40]}")


def _object(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, "an object with keys and values in braces", value)
    return value


def _described(where: str, value: Any, kind: type[_Kind], known: Mapping[str, _Kind]) -> _Kind:
    """One of the known devices or links by its name, or another one that an object describes. Raises UsageError."""
    noun = kind.__name__.lower()
    if isinstance(value, str):
        return find(value, known, noun)
    given = {"name": noun, "source": where, **_values(kind, where, ".", _object(where, value))}
    if "efficiency" in given:
        given["efficiency_source"] = where
    needed = [one.name for one in fields(kind) if one.default is MISSING]  # type: ignore[arg-type]
    if missing := [name for name in needed if name not in given]:
        raise UsageError(f"{where}: has no {missing[0]}; a {noun} needs {', '.join(needed[1:])}")
    return kind(**given)
