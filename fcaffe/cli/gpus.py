"""Which GPUs a command takes: `--gpu` and the solver's `solver_mode`, which are Caffe's, and `--gpus`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fcaffe import log
from fcaffe.engines.cuda import libraries
from fcaffe.errors import UsageError
from fcaffe.parallel.devices import (
    Devices,
    check_devices,
    device_of,
    devices_of_hosts,
    find_devices,
    parse_devices,
)
from fcaffe.parallel.started import host_name
from fcaffe.parallel.world import World
from fcaffe.proto import caffe_pb2 as pb


def first_gpu(flag: str) -> tuple[int, str] | None:
    """(number, name) of the GPU of a command that takes one; None for the CPU. Raises UsageError."""
    if not flag:
        return None
    devices = find_devices()
    first, *others = parse_devices(flag, devices)
    for number in reversed(others):
        log.not_using_gpu(number)
    return first, devices.names[first]


@dataclass(frozen=True)
class TrainingGpus:
    """What the flags of a training say of GPUs: the list of `--gpu`, a worker for each of which takes whole batches, or
    the number of `--gpus`, as many workers that split them. Both are texts, empty without the flag."""

    listed: str = ""
    number: str = ""

    def __bool__(self) -> bool:
        return bool(self.listed or self.number)

    def __str__(self) -> str:
        return f"--gpu {self.listed}" if self.listed else f"--gpus {self.number}"

    def check(self) -> None:
        """Raises UsageError for what makes no sense on any machine."""
        if self.listed and self.number:
            raise UsageError(
                f"--gpu {self.listed} and --gpus {self.number}: --gpu gives each GPU a whole batch, --gpus splits it; "
                "give one of them"
            )
        if self.number and not (self.number.isdecimal() and int(self.number)):
            raise UsageError(f"--gpus takes a number, not '{self.number}'")

    def workers(self, hosts: bool) -> int:
        """How many workers the flags ask for; 0 if they ask for none. With `hosts`, --gpu means so many on each host
        and --gpus so many in all; without, both mean this host, and it is a UsageError if that has not as many GPUs."""
        if self.listed:
            known = hosts and self.listed != "all"
            return len(self.listed.split(",")) if known else len(parse_devices(self.listed, find_devices()))
        if self.number and not hosts:
            check_devices(int(self.number), World(), {host_name(): find_devices()})
        return int(self.number or 0)

    def take(self, param: Any, world: World, on_cpu: bool) -> int | None:
        """The number of this rank's GPU, which the log tells and `param`, the solver's parameters, gets; None for the
        CPU.

        Without flags `param` itself says which GPU, unless `on_cpu`; if that one cannot be used, a warning says why and
        the CPU is taken. Collective. Raises UsageError.
        """
        if self.listed:
            devices = find_devices()
            numbers = parse_devices(self.listed, devices)
            number = device_of(world, devices, numbers)
        elif self.number:
            check_devices(int(self.number), world, devices_of_hosts(world))
            devices = find_devices()
            number = device_of(world, devices)
            numbers = list(range(min(world.local_size, devices.count)))
        elif on_cpu or not param.HasField("solver_mode") or param.solver_mode != pb.SolverParameter.GPU:
            return None
        else:
            devices = find_devices()
            number = param.device_id
            if problem := _why_not(number, devices, world):
                log.warning(f"solver_mode: GPU, but {problem}: training on the CPU")
                return None
            numbers = [number]
        log.using_gpus(numbers, devices.names)
        param.device_id = number
        return number


NO_GPUS = TrainingGpus()


def _why_not(number: int, devices: Devices, world: World) -> str:
    """Why a solver's device_id cannot be used; empty if it can. Raises UsageError for a number that is too high."""
    if world.size > 1:
        return f"that means one GPU, and there are {world.size} workers (--gpus {world.size} gives each of them one)"
    if not devices.count:
        return devices.why_none
    if not 0 <= number < devices.count:
        raise UsageError(
            f"device_id: {number} in the solver, but {host_name()} has {devices}, numbered from 0 to "
            f"{devices.count - 1}; --gpu takes another one"
        )
    try:
        libraries.load(number, "fp32")
    except UsageError as problem:
        return str(problem)
    return ""
