"""Machines to predict for: known devices and links by their makers' data sheets, others from JSON files."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, TypeVar

from fcaffe.errors import UsageError
from fcaffe.suggestions import did_you_mean

MAY_BE_ZERO = ("latency", "layer_seconds")

SUSTAINED = 0.85  # assumed: the share of a link's nominal rate that long messages get
MEMORY_SUSTAINED = 0.7  # assumed: the share of a memory's nominal rate that layers bound by it get


@dataclass(frozen=True)
class Link:
    """A link that messages go over."""

    name: str
    latency: float  # seconds a message
    bandwidth: float  # bytes a second each way that long messages get


@dataclass(frozen=True)
class Device:
    """A device that computes."""

    name: str
    peak: Mapping[str, float]  # FLOP/s by the type of factors
    memory: float  # bytes
    memory_bandwidth: float  # bytes a second
    efficiency: float = 0.4  # the share of the peak that convolutions and inner products get
    layer_seconds: float = 5e-6  # overhead of each layer's pass

    def peak_of(self, math: str) -> float:
        """Raises UsageError for a type of factors that the device has no speed for."""
        if math not in self.peak:
            raise UsageError(f"device {self.name}: no speed in {math} is known, only in {', '.join(self.peak)}")
        return self.peak[math]


def _gpu(
    name: str, memory: float, bandwidth: float, fp32: float, tf32: float = 0, bits16: float = 0, efficiency: float = 0.4
) -> Device:
    """Memory in GB, bandwidth in GB/s, speeds in TFLOP/s (dense)."""
    speeds = {"fp32": fp32, "tf32": tf32, "fp16": bits16, "bf16": bits16 if tf32 else 0}
    peak = {math: 1e12 * speed for math, speed in speeds.items() if speed}
    return Device(name, peak, 1e9 * memory, 1e9 * bandwidth, efficiency)


def _cpu(name: str, cores: int, ghz: float, flops_a_cycle: int, memory: float, bandwidth: float) -> Device:
    peak = {"fp32": 1e9 * cores * ghz * flops_a_cycle}
    return Device(name, peak, 1e9 * memory, 1e9 * bandwidth, efficiency=0.5, layer_seconds=1e-5)


DEVICES = {
    device.name: device
    for device in (
        # Kepler with the kernels of its time: K20's efficiency is between those of the paper's two nets, 0.12 and 0.23
        _gpu("K20", 5, 208, 3.52, efficiency=0.2),
        _gpu("K20X", 6, 250, 3.935, efficiency=0.2),
        _gpu("K40", 12, 288, 4.29, efficiency=0.25),
        _gpu("K80", 12, 240, 2.8, efficiency=0.3),  # one of the two GPUs of a board
        _gpu("M40", 24, 288, 6.84),
        _gpu("P40", 24, 346, 11.76),
        _gpu("P100", 16, 732, 10.6),
        _gpu("T4", 16, 320, 8.1, 0, 65),
        _gpu("V100", 32, 900, 15.7, 0, 125),
        _gpu("RTX3090", 24, 936, 35.6, 35.6, 71),
        _gpu("A100", 80, 2039, 19.5, 156, 312),
        _gpu("L40S", 48, 864, 91.6, 183, 362),
        _gpu("H100", 80, 3350, 66.9, 494.7, 989.4),
        _gpu("H200", 141, 4800, 66.9, 494.7, 989.4),
        _gpu("B200", 180, 8000, 75, 1100, 2250),
        _cpu("Xeon-E5-2697v3", 14, 2.6, 32, 64, 68),
        _cpu("Xeon-Phi-7250", 68, 1.4, 64, 16, 400),
        _cpu("Xeon-8380", 40, 2.3, 64, 256, 204.8),
        _cpu("EPYC-7763", 64, 2.45, 32, 256, 204.8),
        _cpu("EPYC-9654", 96, 2.4, 32, 384, 460.8),
    )
}


def _nominal(name: str, latency: float, rate: float) -> Link:
    """Microseconds, and GB/s by the data sheet."""
    return Link(name, 1e-6 * latency, 1e9 * SUSTAINED * rate)


# The one constant that is fitted to the cluster rows of FireCaffe's Tables 2 and 3 (nominal: 8.3 GB/s).
GEMINI = Link("Gemini", 1.5e-6, 2.8e9)

LINKS = {
    link.name: link
    for link in (
        GEMINI,
        _nominal("FDR", 1.3, 6.8),
        _nominal("EDR", 1.2, 12.5),
        _nominal("HDR", 1.2, 25),
        _nominal("NDR", 1.2, 50),
        _nominal("1GbE", 50, 0.125),
        _nominal("10GbE", 20, 1.25),
        _nominal("25GbE", 15, 3.125),
        _nominal("100GbE", 10, 12.5),
        _nominal("400GbE", 8, 50),
        _nominal("PCIe3", 5, 15.75),
        _nominal("PCIe4", 5, 31.5),
        _nominal("PCIe5", 5, 63),
        _nominal("NVLink1", 3, 80),
        _nominal("NVLink2", 3, 150),
        _nominal("NVLink3", 3, 300),
        _nominal("NVLink4", 3, 450),
        _nominal("NVLink5", 3, 900),
        _nominal("memory", 1, 10),  # between processes of a host, which copy through its memory
    )
}

_Known = TypeVar("_Known")


def find(name: str, known: Mapping[str, _Known], noun: str) -> _Known:
    """The known item of this name, in upper or lower case. Raises UsageError."""
    by_lower = {key.lower(): value for key, value in known.items()}
    if name.lower() not in by_lower:
        raise UsageError(f"there is no {noun} '{name}'{did_you_mean(name, known)}; known are {', '.join(known)}")
    return by_lower[name.lower()]


TEXTBOOK, FCAFFE = "textbook", "fcaffe"


@dataclass(frozen=True)
class Machine:
    """A machine to predict for. A speed that is None costs nothing.

    `exchange` is `textbook`, the forms of books and of FireCaffe's paper: a tree sums whole buffers, the server is a
    process of its own, and without overlap all gradients are one sum. Or it is `fcaffe`, what its ranks do: a tree in
    segments, rank 0 serves, sums of buckets in any case.
    """

    name: str
    device: Device
    devices_per_node: int = 1  # ranks of a node
    within: Link = LINKS["memory"]  # between ranks of a node
    between: Link = LINKS["10GbE"]  # between nodes
    links_per_node: int = 1  # such links of each node
    exchange: str = TEXTBOOK
    speeds: Mapping[str, float] = field(default_factory=dict)  # images a second that a device trains, by the net's name
    speed: float | None = None  # the same, of any net
    add_bandwidth: float | None = None  # bytes of a buffer that a rank adds to another in a second
    read_images: float | None = None  # images a second that one worker can read
    read_images_in_all: float | None = None  # and all workers together

    def nodes(self, workers: int) -> int:
        return math.ceil(workers / self.devices_per_node)

    def speed_of(self, net: str) -> float | None:
        """Images a second of one device, if that is known of the net of this name."""
        return self.speed or {plain(name): speed for name, speed in self.speeds.items()}.get(plain(net))


def plain(name: str) -> str:
    """A net's name in lower case, without punctuation, which differs between files."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


TITAN = Machine(  # of FireCaffe's paper: one K20 a node
    "titan",
    replace(DEVICES["K20"], layer_seconds=0.0),
    between=GEMINI,
    within=LINKS["PCIe3"],
    # 47 epochs in 5.8 days and 64 in 21, of 1,281,167 images each: the paper's rows of one GPU
    speeds={"nin_imagenet": 120.2, "nin": 120.2, "googlenet": 45.2},
)

MACHINES = {
    machine.name: machine
    for machine in (
        TITAN,
        Machine("k80", DEVICES["K80"], 16, LINKS["PCIe3"], LINKS["10GbE"]),
        Machine("p100", DEVICES["P100"], 8, LINKS["NVLink1"], LINKS["EDR"], links_per_node=4),
        Machine("v100", DEVICES["V100"], 8, LINKS["NVLink2"], LINKS["EDR"], links_per_node=4),
        Machine("a100", DEVICES["A100"], 8, LINKS["NVLink3"], LINKS["HDR"], links_per_node=8),
        Machine("h100", DEVICES["H100"], 8, LINKS["NVLink4"], LINKS["NDR"], links_per_node=8),
        Machine("h200", DEVICES["H200"], 8, LINKS["NVLink4"], LINKS["NDR"], links_per_node=8),
        Machine("xeon", DEVICES["Xeon-8380"], 2, LINKS["memory"], LINKS["25GbE"]),
    )
}


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
    values = {"name": path, **_values(Machine, path, given)}
    return replace(base, **values) if base else Machine(**values)


def _values(kind: type, where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass, from the keys of an object; null is as if the key were missing. Raises UsageError."""
    types = {field.name: str(field.type) for field in fields(kind)}
    for key in given:
        if key not in types:
            raise UsageError(f"{where}: unknown key '{key}'{did_you_mean(key, types)}; known are {', '.join(types)}")
    return {key: _value(f"{where}: {key}", key, types[key], one) for key, one in given.items() if one is not None}


def _value(where: str, key: str, kind: str, value: Any) -> Any:
    """The value of a field, by its type: a number, a text, or an object of such."""
    if kind in ("Link", "Device"):
        return _described(where, value, Link, LINKS) if kind == "Link" else _described(where, value, Device, DEVICES)
    if key == "peak" and not isinstance(value, dict):
        value = {"fp32": value}
    if key in ("peak", "speeds"):
        return {name: _value(f"{where}: {name}", name, "float", one) for name, one in _object(where, value).items()}
    if key == "exchange" and value not in (TEXTBOOK, FCAFFE):
        raise _wrong(where, f"{TEXTBOOK} or {FCAFFE}", value)
    if kind == "str" and not isinstance(value, str):
        raise _wrong(where, "a text in quotes", value)
    if kind != "str":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf or not (value or key in MAY_BE_ZERO):
            raise _wrong(where, "a number that is not negative" if key in MAY_BE_ZERO else "a number above 0", value)
    return value


def _wrong(where: str, words: str, value: Any) -> UsageError:
    return UsageError(f"{where}: must be {words}, not {json.dumps(value)[:40]}")


def _object(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, "an object with keys and values in braces", value)
    return value


def _described(where: str, value: Any, kind: type[_Known], known: Mapping[str, _Known]) -> _Known:
    """One of the known devices or links by its name, or another one that an object describes. Raises UsageError."""
    noun = kind.__name__.lower()
    if isinstance(value, str):
        return find(value, known, noun)
    given = {"name": noun, **_values(kind, where, _object(where, value))}
    needed = [one.name for one in fields(kind) if one.default is MISSING]  # type: ignore[arg-type]
    if missing := [name for name in needed if name not in given]:
        raise UsageError(f"{where}: has no {missing[0]}; a {noun} needs {', '.join(needed[1:])}")
    return kind(**given)
