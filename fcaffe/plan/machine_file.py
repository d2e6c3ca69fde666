"""Machines as JSON files, which users write by hand and `fcaffe plan --calibrate` writes as measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from fcaffe.errors import UsageError
from fcaffe.output_files import replacing
from fcaffe.plan.devices import DEVICES, LINKS, Device, Link, find
from fcaffe.plan.machine import FCAFFE, MACHINES, TEXTBOOK, Machine, MeasuredNet, is_file
from fcaffe.suggestions import did_you_mean

MACHINE = "machine.json"  # where a calibration goes, if nobody says otherwise

Convert = Callable[[str, Any], Any]  # a key's path in the file, for errors, and its value


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
    """The machine that a file's content describes; what is not said is as in the machine that it is `like`, or the
    default. Raises UsageError."""
    given = dict(_object(path, content))
    like = given.pop("like", None)
    base = find(_text(f"{path}: like", like), MACHINES, "machine") if like is not None else None
    if base is None and "device" not in given:
        raise UsageError(f"{path}: a machine needs a device, by name ({', '.join(DEVICES)}) or as an object")
    converters: dict[str, Convert] = {
        "name": _text,
        "device": _device,
        "within": _link,
        "between": _link,
        "exchange": _exchange,
        "speeds": lambda where, value: {
            net: _number(f"{where}.{net}", one) for net, one in _object(where, value).items()
        },
        "measured": _measured,
        "nodes_share_cores": _flag,
        "devices_per_node": _count,
        "links_per_node": _count,
        "cores": _count,
        "cpu_per_message": _number_or_zero,
        "cpu_per_byte": _number_or_zero,
        "iteration_seconds": _number_or_zero,
        "contention": _number,
        "speed": _number,
        "add_bandwidth": _number,
        "update_bandwidth": _number,
        "read_images": _number,
        "read_images_in_all": _number,
    }
    _known_keys(path, given, ["like", *converters])
    made = {key: converters[key](f"{path}: {key}", value) for key, value in given.items() if value is not None}
    made = {"name": path, **made, "source": path}
    return replace(base, **made) if base else Machine(**made)


def write_machine(machine: Machine, path: str) -> None:
    """Raises FcaffeError."""
    content: dict[str, Any] = {}
    for field in fields(machine):
        value = getattr(machine, field.name)
        if field.name == "device":
            value = {
                "name": value.name,
                "peak": dict(value.peak),
                "efficiency": value.efficiency,
                "memory": value.memory,
                "memory_bandwidth": value.memory_bandwidth,
                "layer_seconds": value.layer_seconds,
            }
        elif field.name in ("within", "between"):
            link = {"name": value.name, "latency": value.latency, "bandwidth": value.bandwidth}
            value = {**link, "burst": value.burst} if value.burst else link
        elif field.name == "measured":
            value = [{key: part for key, part in asdict(one).items() if part is not None} for one in value]
        elif field.name == "source":
            continue
        if value is not None:
            content[field.name] = value
    with replacing(path, "machine") as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


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
    unit = next((unit for unit in units if text.endswith(unit)), None)
    if unit is None:
        raise ValueError(text)
    number = float(text.removesuffix(unit)) * units[unit]
    if not 0 < number < math.inf:
        raise ValueError(text)
    return number


def _known_keys(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for key in given:
        if key not in known:
            raise UsageError(f"{where}: unknown key '{key}'{did_you_mean(key, known)}; known are {', '.join(known)}")


def _object(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: must be an object with keys and values in braces, not {json.dumps(value)[:40]}")
    return value


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where}: must be a text in quotes, not {json.dumps(value)[:40]}")
    return value


def _number_or_zero(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageError(f"{where}: must be a number that is not negative, not {json.dumps(value)[:40]}")
    return float(value)


def _number(where: str, value: Any) -> float:
    if _number_or_zero(where, value) == 0:
        raise UsageError(f"{where}: must be above 0")
    return float(value)


def _count(where: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{where}: must be a whole number from 1 on, not {json.dumps(value)[:40]}")
    return value


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{where}: must be true or false, not {json.dumps(value)[:40]}")
    return value


def _exchange(where: str, value: Any) -> str:
    if value not in (TEXTBOOK, FCAFFE):
        raise UsageError(f"{where}: must be {TEXTBOOK} or {FCAFFE}, not {json.dumps(value)[:40]}")
    return str(value)


def _link(where: str, value: Any) -> Link:
    if isinstance(value, str):
        return find(value, LINKS, "link")
    given = _object(where, value)
    _known_keys(where, given, ["name", "latency", "bandwidth", "burst"])
    if not {"latency", "bandwidth"} <= given.keys():
        raise UsageError(f"{where}: a link has a latency in seconds and a bandwidth in bytes a second")
    name = _text(f"{where}.name", given.get("name", "link"))
    latency = _number_or_zero(f"{where}.latency", given["latency"])
    burst = _number_or_zero(f"{where}.burst", given.get("burst", 0.0))
    return Link(name, latency, _number(f"{where}.bandwidth", given["bandwidth"]), where, burst)


def _device(where: str, value: Any) -> Device:
    if isinstance(value, str):
        return find(value, DEVICES, "device")
    given = _object(where, value)
    numbers = ("efficiency", "memory", "memory_bandwidth", "layer_seconds")
    _known_keys(where, given, ["name", "peak", *numbers])
    if not {"peak", "memory", "memory_bandwidth"} <= given.keys():
        raise UsageError(f"{where}: a device has a peak in FLOP/s, a memory in bytes and a memory_bandwidth in bytes/s")
    peak = given["peak"] if isinstance(given["peak"], dict) else {"fp32": given["peak"]}
    made = {name: _number_or_zero(f"{where}.{name}", given[name]) for name in numbers if name in given}
    for name in made.keys() - {"layer_seconds"}:
        _number(f"{where}.{name}", made[name])
    speeds = {math: _number(f"{where}.peak.{math}", one) for math, one in peak.items()}
    name = _text(f"{where}.name", given.get("name", "device"))
    return Device(name, speeds, source=where, efficiency_source=where if "efficiency" in made else "assumed", **made)


def _measured(where: str, value: Any) -> tuple[MeasuredNet, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{where}: must be a list in brackets")
    return tuple(_measured_net(f"{where}[{index}]", one) for index, one in enumerate(value))


def _measured_net(where: str, value: Any) -> MeasuredNet:
    given = _object(where, value)
    keys = ["net", "ranks", "batches", "layers"]
    optional = ["update", "rest", "per_sum"]
    _known_keys(where, given, [*keys, *optional])
    if missing := [key for key in keys if key not in given]:
        raise UsageError(f"{where}: has no {missing[0]}")
    batches = [_count(f"{where}.batches", batch) for batch in given["batches"]]
    if not batches or batches != sorted(set(batches)):
        raise UsageError(f"{where}.batches: must be whole numbers that grow")
    layers = {}
    for name, pairs in _object(f"{where}.layers", given["layers"]).items():
        place = f"{where}.layers.{name}"
        if not isinstance(pairs, list) or len(pairs) != len(batches) or any(len(pair) != 2 for pair in pairs):
            raise UsageError(f"{place}: must be [forward, backward] in seconds for each of {len(batches)} batches")
        layers[name] = [(_number_or_zero(place, pair[0]), _number_or_zero(place, pair[1])) for pair in pairs]
    more = {key: _number_or_zero(f"{where}.{key}", given[key]) for key in optional if key in given}
    net, ranks = _text(f"{where}.net", given["net"]), _count(f"{where}.ranks", given["ranks"])
    return MeasuredNet(net, ranks, batches, layers, **more)
