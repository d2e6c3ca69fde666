"""The flags that choose and configure the engine, the GPUs that Caffe's --gpu and solver_mode and --gpus choose.

`device_query` prints the properties of GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fcaffe import log
from fcaffe.cli import streams
from fcaffe.cli.flags import CPU, ENGINE, GPU, Flags, Way, check_flags, command, flag, with_flags
from fcaffe.engines import Engine, cpu_engine, gpu_engine, missing
from fcaffe.errors import UsageError
from fcaffe.jobs.started import host_name
from fcaffe.jobs.world import World
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.threads import describe_threads


@dataclass(frozen=True)
class EngineFlags:
    engine: str | None = flag(
        ["onednn", "numpy"], "Engine for CPUs (oneDNN, or NumPy where that is missing).", default=None, needs=[CPU]
    )
    math: str = flag(
        ["fp32", "winograd", "tf32", "fp16", "bf16"],
        "Type of the factors in convolutions and inner products; sums and weights are float32. fp16 and bf16 are also "
        "the types of activations; tf32 and fp16 need a GPU. winograd is float32 with fewer multiplications in 3x3 "
        "and 5x5 convolutions on CPUs, and errors some ten times as large (fp32).",
        default="fp32",
    )
    graphs: bool = flag(
        None, "On GPUs: no CUDA graphs, to debug.", "--no-graph", default=True, flag_value=False, needs=[GPU]
    )
    loss_scale: str = flag(
        "N",
        "With --math fp16: multiply gradients by N, or adapt N during training (dynamic, the default).",
        "--loss-scale",
        needs=[GPU],
    )
    nondeterministic: bool = flag(
        None,
        "On GPUs: allow faster algorithms whose last bits differ from run to run.",
        "--fast-nondeterministic",
        default=False,
        needs=[GPU],
    )

    def create(self, gpu: int | None = None) -> Engine:
        """Create the engine, on this GPU or on the CPU, and log its name. Raises UsageError."""
        check_flags(Way(gpu=gpu is not None), self)
        if gpu is not None:
            return self._on_gpu(gpu)
        engine = cpu_engine(self.math, self.engine or "")
        lacking = "" if self.engine or self.math != "fp32" else missing()
        log.info(f"{engine.name} engine, {describe_threads()}{lacking and f'; {lacking}'}")
        return engine

    def _on_gpu(self, gpu: int) -> Engine:
        if self.loss_scale and self.math != "fp16":
            raise UsageError(f"--loss-scale is for --math fp16: {self.math} does without, leave it out")
        engine = gpu_engine(gpu, self.math, not self.nondeterministic, self.graphs, _scale(self.loss_scale))
        graphs = "" if self.graphs else ", no CUDA graphs"
        from fcaffe.engines.cuda.libraries import find_gpu

        gain = find_gpu(gpu).tf32_gain if self.math == "fp32" else 1
        faster = f"; --math tf32 is up to {gain} times as fast" if gain > 1 else ""
        log.info(f"{engine.name} engine{graphs}{', not deterministic' if self.nondeterministic else ''}{faster}")
        return engine


def _scale(text: str) -> float | None:
    """Return the number of a --loss-scale flag; None for a dynamic scale. Raises UsageError."""
    if text in ("", "dynamic"):
        return None
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 0 < scale < math.inf:
        raise UsageError(f"--loss-scale takes a positive number or 'dynamic', not '{text}'")
    return scale


engine_flags = with_flags("engines", EngineFlags, ENGINE)


@dataclass(frozen=True)
class GpuFlags(EngineFlags):
    """The same for commands that do not have Caffe's flags."""

    gpu: str = flag("ID", "GPU to compute on (the CPU).")

    def chosen(self) -> Engine:
        """Create the engine, on the GPU of --gpu or on the CPU. Raises UsageError."""
        device = first_gpu(self.gpu)
        return self.create(device and device[0])


gpu_flags = with_flags("engines", GpuFlags, ENGINE)


@dataclass(frozen=True)
class Devices:
    """The names of the GPUs that NVIDIA's driver lists; `why_none` is the reason for none."""

    names: tuple[str, ...]
    why_none: str = ""

    @property
    def count(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        if self.count:
            return f"{self.count} GPU{'s' * (self.count > 1)}"
        return f"no GPU ({self.why_none})"


def find_devices() -> Devices:
    """The GPUs of this host that this process may use."""
    from fcaffe.engines.cuda.driver import find_driver

    try:
        return Devices(tuple(gpu.name for gpu in find_driver().gpus))
    except UsageError as problem:
        return Devices((), str(problem))


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
        if self.number and not hosts and (devices := find_devices()).count < int(self.number):
            raise UsageError(
                f"{self} needs a GPU for each worker, but {host_name()} has {devices}; ask for as many as there are"
            )
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
    return _unusable(number)


def _unusable(number: int) -> str:
    """Why a GPU that is there cannot be used, '' if it can."""
    from fcaffe.engines.cuda import libraries

    try:
        libraries.load(number, "fp32")
    except UsageError as problem:
        return str(problem)
    return ""


@command(
    example="device_query --gpu all",
    help="Show what NVIDIA's driver knows of GPUs (--gpu ID,... or --gpu all), and whether fcaffe can use them.",
    caffe="gpu",
)
def device_query(flags: Flags) -> int:
    log.querying_gpus(flags.gpu)
    from fcaffe.engines.cuda.driver import find_driver

    devices = find_devices()
    if flags.gpu:
        for number in parse_devices(flags.gpu, devices):
            log.gpu_fields(fields(number, find_driver().gpus[number]))
            if problem := _unusable(number):
                log.warning(f"GPU {number}: fcaffe cannot use it: {problem}")
            else:
                log.info(f"GPU {number}: all that fcaffe needs is there; scripts/check_gpu tries it in a minute")
    elif devices.count:
        log.info(f"This host has {devices}: {', '.join(devices.names)}; --gpu all shows their properties")
    else:
        log.warning(f"This host has {devices}")
    return 1 if streams.error_fails() else 0  # standard error is this command's only output


def fields(number: int, gpu: Any) -> Iterator[tuple[str, object]]:
    """Yield the properties of a GPU by Caffe's names; sizes in bytes, the clock rate in kHz."""
    from fcaffe.engines.cuda import driver

    values = gpu.attributes
    yield "Device id", number
    yield "Major revision number", values[driver.MAJOR]
    yield "Minor revision number", values[driver.MINOR]
    yield "Name", gpu.name
    yield "Total global memory", gpu.memory
    yield "Total shared memory per block", values[driver.SHARED_MEMORY]
    yield "Total registers per block", values[driver.REGISTERS]
    yield "Warp size", values[driver.WARP]
    yield "Maximum memory pitch", values[driver.PITCH]
    yield "Maximum threads per block", values[driver.MAX_THREADS]
    yield "Maximum dimension of block", "{}, {}, {}".format(*gpu.three(driver.BLOCK_X))
    yield "Maximum dimension of grid", "{}, {}, {}".format(*gpu.three(driver.GRID_X))
    yield "Clock rate", values[driver.CLOCK]
    yield "Total constant memory", values[driver.CONSTANT_MEMORY]
    yield "Texture alignment", values[driver.TEXTURE_ALIGNMENT]
    yield "Concurrent copy and execution", "Yes" if values[driver.OVERLAP] else "No"
    yield "Number of multiprocessors", values[driver.MULTIPROCESSORS]
    yield "Kernel execution timeout", "Yes" if values[driver.TIMEOUT] else "No"
