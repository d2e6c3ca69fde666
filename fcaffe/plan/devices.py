"""Known devices and links, from their makers' data sheets, and what is assumed of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fcaffe.errors import UsageError
from fcaffe.suggestions import did_you_mean

SUSTAINED = 0.85  # assumed: the share of a link's nominal rate that long messages get
MEMORY_SUSTAINED = 0.7  # assumed: the share of a memory's nominal rate that layers bound by it get
SHEET = "the maker's data sheet"


@dataclass(frozen=True)
class Link:
    """What messages go over."""

    name: str
    latency: float  # seconds a message
    bandwidth: float  # bytes a second each way that long messages get
    source: str
    burst: float = 0.0  # bytes that pass at once after the link has idled, where a bucket of tokens limits it


@dataclass(frozen=True)
class Device:
    """What computes."""

    name: str
    peak: Mapping[str, float]  # FLOP/s by the type of factors
    memory: float  # bytes
    memory_bandwidth: float  # bytes a second
    efficiency: float = 0.4  # the share of the peak that convolutions and inner products get
    layer_seconds: float = 5e-6  # what it takes to begin one layer's pass
    source: str = SHEET
    efficiency_source: str = "assumed"

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
    source = f"{SUSTAINED:.0%} (assumed) of the nominal {rate:g} GB/s"
    return Link(name, 1e-6 * latency, 1e9 * SUSTAINED * rate, source)


GEMINI = Link(
    "Gemini",
    1.5e-6,
    2.8e9,
    "the one constant fitted to the cluster rows of FireCaffe's Tables 2 and 3 (nominal: 8.3 GB/s)",
)

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
    """The one of this name, whether letters are large or small. Raises UsageError."""
    by_lower = {key.lower(): value for key, value in known.items()}
    if name.lower() not in by_lower:
        raise unknown(noun, name, known)
    return by_lower[name.lower()]


def unknown(noun: str, name: str, known: Iterable[str]) -> UsageError:
    return UsageError(f"there is no {noun} '{name}'{did_you_mean(name, known)}; known are {', '.join(known)}")
