"""How long a worker computes, layer by layer: by a net's known speed, or by a device's peaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from fcaffe.plan.devices import MEMORY_SUSTAINED, Device
from fcaffe.plan.machine import Machine
from fcaffe.plan.work import LayerWork, Work


@dataclass(frozen=True)
class Compute:
    """Seconds of each layer's forward and backward for one pass over a worker's share, in the net's order, and where
    these numbers come from."""

    forward: Sequence[float]
    backward: Sequence[float]
    origin: str

    @property
    def seconds(self) -> float:
        return sum(self.forward) + sum(self.backward)

    def times(self, factor: float) -> Compute:
        return Compute([factor * one for one in self.forward], [factor * one for one in self.backward], self.origin)


def compute_of(work: Work, machine: Machine, math: str, samples: float, workers: int) -> Compute:
    """One pass over so many samples, while so many workers compute."""
    estimated = by_peaks(work.layers, machine.device, math, samples)
    if speed := machine.speed_of(work.name):
        origin = f"{samples:g} images at {speed:g} a second ({machine.source}), split by the layers' peaks"
        split = Compute(estimated.forward, estimated.backward, origin)
        estimated = split.times(samples / speed / estimated.seconds)
    return estimated.times(machine.slowdown(workers))


def by_peaks(layers: Sequence[LayerWork], device: Device, math: str, samples: float) -> Compute:
    """The roofline of each layer: its operations at the share of the peak that is assumed, or its bytes at that of the
    memory's bandwidth, whichever takes longer."""
    flops = device.efficiency * device.peak_of(math)
    rate = MEMORY_SUSTAINED * device.memory_bandwidth
    width = 1.0 if math in ("fp32", "tf32") else 0.5  # with 16 bits, blobs are half as long

    def seconds(operations: float, moved: float, parameters: float) -> float:
        if not operations and not moved:
            return 0.0
        return device.layer_seconds + max(samples * operations / flops, width * (samples * moved + parameters) / rate)

    forward = [seconds(*layer.forward, layer.parameter_bytes) for layer in layers]
    backward = [seconds(*layer.backward, 2 * layer.parameter_bytes) for layer in layers]
    origin = (
        f"each layer: the longer of its operations at {device.efficiency:.0%} ({device.efficiency_source}) of "
        f"{device.peak_of(math) / 1e12:g} TFLOP/s and its bytes at {MEMORY_SUSTAINED:.0%} (assumed) of "
        f"{device.memory_bandwidth / 1e9:g} GB/s, and {1e6 * device.layer_seconds:g} us"
    )
    return Compute(forward, backward, origin)


def slowest(workers: int, spread: float) -> float:
    """How many times the mean the slowest of so many workers takes, whose times are spread normally with this relative
    standard deviation: Blom's approximation of the largest order statistic."""
    if workers == 1 or not spread:
        return 1.0
    return 1.0 + spread * NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))
