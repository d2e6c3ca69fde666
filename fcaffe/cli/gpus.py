"""Chooses GPUs by Caffe's `--gpu` and `solver_mode`, and by `--gpus`."""

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
    find_devices,
    parse_devices,
)
from fcaffe.parallel.started import host_name
from fcaffe.parallel.world import World
from fcaffe.proto import caffe_pb2 as pb


def first_gpu(flag: str) -> tuple[int, str] | None:
    """Return (number, name) of the first GPU of a --gpu flag; None for the CPU. Raises UsageError."""
    if not flag:
        return None
    devices = find_devices()
    first, *others = parse_devices(flag, devices)
    for number in reversed(others):
        log.not_using_gpu(number)
    return first, devices.names[first]


@dataclass(frozen=True)
class TrainingGpus:
    """The GPU flags of a training, as texts that are empty without the flag.

    `--gpu LIST` starts a worker for each GPU of the list, which takes whole batches. `--gpus N` starts N workers, which
    split each batch.
    """

    listed: str = ""
    number: str = ""

    def __bool__(self) -> bool:
        return bool(self.listed or self.number)

    def __str__(self) -> str:
        return f"--gpu {self.listed}" if self.listed else f"--gpus {self.number}"

    def check(self) -> None:
        """Raises UsageError for flags that no machine can satisfy."""
        if self.listed and self.number:
            raise UsageError(
                f"--gpu {self.listed} and --gpus {self.number}: --gpu gives each GPU a whole batch, --gpus splits it; "
                "give one of them"
            )
        if self.number and not (self.number.isdecimal() and int(self.number)):
            raise UsageError(f"--gpus takes a number, not '{self.number}'")

    def workers(self, hosts: bool) -> int:
        """Return the number of workers that the flags ask for; 0 without the flags.

        With `hosts`, --gpu counts the workers of each host and --gpus those of all hosts. Without, both count those of
        this host; raises UsageError if it has fewer GPUs.
        """
        if self.listed:
            known = hosts and self.listed != "all"
            return len(self.listed.split(",")) if known else len(parse_devices(self.listed, find_devices()))
        if self.number and not hosts:
            check_devices(int(self.number), find_devices())
        return int(self.number or 0)

    def take(self, param: Any, world: World, on_cpu: bool) -> int | None:
        """Choose this rank's GPU, log it and store it in the solver's `param`; returns its number, None for the CPU.

        Without flags `param` names the GPU, unless `on_cpu`. If that GPU cannot be used, a warning says why, and the
        CPU computes. Collective. Raises UsageError.
        """
        if self.listed:
            devices = find_devices()
            numbers = parse_devices(self.listed, devices)
            number = device_of(world, devices, numbers)
        elif self.number:
            if world.size != int(self.number):
                raise UsageError(f"{self}, but {world.size} ranks were started: leave the flag out")
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
    """Return why a solver's device_id cannot be used, '' if it can. Raises UsageError for a number that is too high."""
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
