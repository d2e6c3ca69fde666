"""Devices: the GPUs of each host, and the one that each rank uses."""

from __future__ import annotations

from dataclasses import dataclass

from fcaffe.engines.cuda.driver import find_driver
from fcaffe.errors import UsageError
from fcaffe.parallel.started import host_name
from fcaffe.parallel.world import World


@dataclass(frozen=True)
class Devices:
    """The GPUs that NVIDIA's driver lists, by their addresses on the PCI bus; `why_none` is the reason for none."""

    addresses: tuple[str, ...]
    why_none: str = ""
    names: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.addresses)

    def __str__(self) -> str:
        if self.count:
            return f"{self.count} GPU{'s' * (self.count > 1)}"
        return f"no GPU ({self.why_none})"


def find_devices() -> Devices:
    """The GPUs of this host that this process may use."""
    try:
        gpus = find_driver().gpus
    except UsageError as problem:
        return Devices((), str(problem))
    return Devices(tuple(gpu.address for gpu in gpus), "", tuple(gpu.name for gpu in gpus))


def check_devices(gpus: int, devices: Devices) -> None:
    """Check that each of `gpus` workers on this host can have a GPU of its own. Raises UsageError."""
    if devices.count < gpus:
        raise UsageError(
            f"--gpus {gpus} needs a GPU for each worker, but {host_name()} has {devices}; ask for as many as there are"
        )


def parse_devices(text: str, devices: Devices) -> list[int]:
    """The numbers of `--gpu 0,1,2` or `--gpu all`. Raises UsageError."""
    if text == "all" and devices.count:
        return list(range(devices.count))
    words = text.split(",")
    if text != "all" and not all(word.isdecimal() for word in words):
        raise UsageError(f"--gpu {text}: give numbers of GPUs with commas between them, or all")
    numbers = [int(word) for word in words if word.isdecimal()]
    wrong = [number for number in numbers if number >= devices.count]
    if wrong or not numbers:
        last = f", numbered from 0 to {devices.count - 1}" if devices.count else ""
        raise UsageError(f"--gpu {text}: {host_name()} has {devices}{last}")
    return numbers


def device_of(world: World, devices: Devices, listed: list[int] | None = None) -> int:
    """The number of the GPU that this rank uses: its index among the ranks of its host selects one of the `listed` GPUs
    or of all. If a launcher exposes one GPU to each rank, it is that one."""
    numbers = list(range(devices.count)) if listed is None else listed
    if listed is None and devices.count == 1:
        return 0
    if world.local_rank >= len(numbers):
        has = f"which has {devices}" if listed is None else f"and --gpu lists {len(listed)} of its GPUs"
        raise UsageError(f"rank {world.rank} is number {world.local_rank} (from 0) on {world.hosts[world.rank]}, {has}")
    return numbers[world.local_rank]
