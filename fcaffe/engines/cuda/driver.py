"""Lists the GPUs by NVIDIA's driver through ctypes, without any package and without a CUDA context."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

from fcaffe.errors import UsageError

# Numbers of CUdevice_attribute.
MAX_THREADS, BLOCK_X, GRID_X = 1, 2, 5  # y and z follow x
SHARED_MEMORY, CONSTANT_MEMORY, WARP, PITCH, REGISTERS, CLOCK, TEXTURE_ALIGNMENT = range(8, 15)
OVERLAP, MULTIPROCESSORS, TIMEOUT = 15, 16, 17
MAJOR, MINOR = 75, 76

TF32_GAINS = {(8, 0): 8, (9, 0): 7, (10, 0): 14}  # of data centres' GPUs, by compute capability

NO_DEVICE = 100
STUB = 34  # CUDA's stub library, which is for linking only


@dataclass(frozen=True)
class Gpu:
    """A GPU as CUDA numbers it; `memory` in bytes, `capability` (major, minor), `attributes` by number."""

    name: str
    address: str  # on the PCI bus
    memory: int
    attributes: dict[int, int]

    @property
    def capability(self) -> tuple[int, int]:
        return self.attributes[MAJOR], self.attributes[MINOR]

    @property
    def tf32_gain(self) -> int:
        """The peak speed of TF32 over that of float32."""
        return TF32_GAINS.get(self.capability, 1)

    def three(self, first: int) -> tuple[int, int, int]:
        """The attribute's x, y and z."""
        return self.attributes[first], self.attributes[first + 1], self.attributes[first + 2]


@dataclass(frozen=True)
class Driver:
    """`version`: of the newest CUDA that the driver can run, as (13, 0)."""

    version: tuple[int, int]
    gpus: tuple[Gpu, ...]


def _packages() -> str:
    """The remedy for missing packages, as a part of the error about a missing driver."""
    if all(map(importlib.util.find_spec, ("cupy", "cudnn"))):
        return ""
    return "; then the packages, pip install '.[cuda13]' in fcaffe's repository, or [cuda12] if nvidia-smi says CUDA 12"


def find_driver() -> Driver:
    """Raises UsageError, which says what is missing, if there is no driver or no GPU that this process may use."""
    try:
        cuda = open_library()
    except OSError as problem:
        raise UsageError(
            "there is no NVIDIA driver, as libcuda.so.1 cannot be loaded: install the GPU's driver, or start the "
            f"container with its GPUs{_packages()}"
        ) from problem
    code = cuda.cuInit(0)
    if code == NO_DEVICE:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "" if hidden is None else f": CUDA_VISIBLE_DEVICES is '{hidden}'"
        raise UsageError(f"NVIDIA's driver sees no GPU{why or ' here; nvidia-smi lists the GPUs that it sees'}")
    if code == STUB:
        raise UsageError("libcuda.so.1 is CUDA's stub for linking, not a driver: take its folder from LD_LIBRARY_PATH")
    _check(cuda, code, "does not start; nvidia-smi may say more, and a new driver needs a restart of the machine")
    version = _number(cuda, "cuDriverGetVersion")
    gpus = tuple(_gpu(cuda, number) for number in range(_number(cuda, "cuDeviceGetCount")))
    return Driver((version // 1000, version % 1000 // 10), gpus)


def open_library() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _gpu(cuda: Any, number: int) -> Gpu:
    handle = _number(cuda, "cuDeviceGet", number)
    wanted = (*range(MAX_THREADS, TIMEOUT + 1), MAJOR, MINOR)
    attributes = {attribute: _number(cuda, "cuDeviceGetAttribute", attribute, handle) for attribute in wanted}
    memory = ctypes.c_size_t()
    _check(cuda, cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle), "cannot tell the memory of a GPU")
    name, address = (ctypes.create_string_buffer(256) for _ in range(2))
    _check(cuda, cuda.cuDeviceGetName(name, 256, handle), "cannot tell the name of a GPU")
    _check(cuda, cuda.cuDeviceGetPCIBusId(address, 256, handle), "cannot tell the address of a GPU")
    return Gpu(name.value.decode(), address.value.decode(), memory.value, attributes)


def _number(cuda: Any, function: str, *arguments: int) -> int:
    result = ctypes.c_int()
    _check(cuda, getattr(cuda, function)(ctypes.byref(result), *arguments), f"fails in {function}")
    return result.value


def _check(cuda: Any, code: int, what: str) -> None:
    if code:
        words = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(words))
        raise UsageError(f"NVIDIA's driver {what} (error {code}: {(words.value or b'unknown').decode()})")
