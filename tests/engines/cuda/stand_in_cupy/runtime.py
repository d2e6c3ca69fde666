"""cupy.cuda.runtime: one H200."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tests.engines.cuda.stand_in_cupy import errors, memory, streams
from tests.engines.cuda.stand_in_cupy.errors import CUDARuntimeError

DEVICES = 1
current = 0  # device
HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, DEFAULT = range(5)

PROPERTIES: dict[str, Any] = {
    "name": b"NVIDIA H200",
    "totalGlobalMem": memory.TOTAL_MEMORY,
    "sharedMemPerBlock": 49152,
    "sharedMemPerBlockOptin": 232448,
    "sharedMemPerMultiprocessor": 233472,
    "regsPerBlock": 65536,
    "regsPerMultiprocessor": 65536,
    "warpSize": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiProcessor": 2048,
    "maxThreadsDim": (1024, 1024, 64),
    "maxGridSize": (2147483647, 65535, 65535),
    "multiProcessorCount": 132,
    "clockRate": 1980000,
    "memoryClockRate": 3201000,
    "memoryBusWidth": 6144,
    "l2CacheSize": 62914560,
    "persistingL2CacheMaxSize": 39321600,
    "totalConstMem": 65536,
    "memPitch": 2147483647,
    "textureAlignment": 512,
    "texturePitchAlignment": 32,
    "major": 9,
    "minor": 0,
    "deviceOverlap": 1,
    "asyncEngineCount": 3,
    "concurrentKernels": 1,
    "canMapHostMemory": 1,
    "unifiedAddressing": 1,
    "managedMemory": 1,
    "integrated": 0,
    "isMultiGpuBoard": 0,
    "multiGpuBoardGroupID": 0,
    "kernelExecTimeoutEnabled": 0,
    "computeMode": 0,
    "ECCEnabled": 1,
    "tccDriver": 0,
    "cooperativeLaunch": 1,
    "cooperativeMultiDeviceLaunch": 1,
    "hostNativeAtomicSupported": 0,
    "pageableMemoryAccess": 0,
    "pciBusID": 0x19,
    "pciDeviceID": 0,
    "pciDomainID": 0,
    "uuid": b"0123456789abcdef",
}


def getDeviceCount() -> int:  # noqa: N802
    return DEVICES


def _check(device: int) -> None:
    if not 0 <= device < DEVICES:
        raise CUDARuntimeError(errors.INVALID_DEVICE)


def getDevice() -> int:  # noqa: N802
    return current


def setDevice(device: int) -> None:  # noqa: N802
    _check(device)


def getDeviceProperties(device: int) -> dict[str, Any]:  # noqa: N802
    _check(device)
    return dict(PROPERTIES)


def deviceGetAttribute(attribute: int, device: int) -> int:  # noqa: N802
    _check(device)
    known = {16: "multiProcessorCount", 75: "major", 76: "minor", 38: "l2CacheSize", 10: "warpSize"}
    return int(PROPERTIES[known[attribute]])


def deviceGetPCIBusId(device: int) -> str:  # noqa: N802
    _check(device)
    return f"0000:{PROPERTIES['pciBusID'] + device:02x}:00.0"


def deviceSynchronize() -> None:  # noqa: N802
    streams.synchronise_device("deviceSynchronize")


def driverGetVersion() -> int:  # noqa: N802
    return 13000


def runtimeGetVersion() -> int:  # noqa: N802
    return 13000


def memGetInfo() -> tuple[int, int]:  # noqa: N802
    return memory.runtime_free(), memory.TOTAL_MEMORY


def memcpyAsync(to: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
    if kind == HOST_TO_DEVICE:
        streams.copy_from_host(memory.host_bytes(source, size), memory.as_numpy(to, np.uint8, size), stream)
    elif kind == DEVICE_TO_HOST:
        streams.copy_to_host(memory.as_numpy(source, np.uint8, size), memory.host_bytes(to, size), stream)
    elif kind == DEVICE_TO_DEVICE:
        target, given = memory.as_numpy(to, np.uint8, size), memory.as_numpy(source, np.uint8, size)
        streams.put(lambda: np.copyto(target, given), stream)
    else:
        raise CUDARuntimeError(errors.INVALID_VALUE, f"memcpy of kind {kind}")


def memcpy(to: int, source: int, size: int, kind: int) -> None:
    streams.synchronise("memcpy")
    memcpyAsync(to, source, size, kind, 0)
    streams.Stream.null.arrive()


def memsetAsync(to: int, value: int, size: int, stream: int) -> None:  # noqa: N802
    target = memory.as_numpy(to, np.uint8, size)
    streams.put(lambda: target.fill(value), stream)


def streamSynchronize(stream: int) -> None:  # noqa: N802
    streams.stream_at(stream).synchronize()


def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:  # noqa: N802
    raise NotImplementedError("use Stream.wait_event")


def profilerStart() -> None:  # noqa: N802
    pass


profilerStop = profilerStart  # noqa: N816


class Device:
    def __init__(self, device: int | None = None) -> None:
        self.id = getDevice() if device is None else int(device)
        _check(self.id)

    def use(self) -> None:
        setDevice(self.id)

    def synchronize(self) -> None:
        deviceSynchronize()

    @property
    def compute_capability(self) -> str:
        return f"{PROPERTIES['major']}{PROPERTIES['minor']}"

    @property
    def attributes(self) -> dict[str, int]:
        return {
            "MultiProcessorCount": 132,
            "MaxSharedMemoryPerBlockOptin": 232448,
            "L2CacheSize": 62914560,
            "ClockRate": 1980000,
            "MemoryClockRate": 3201000,
            "GlobalMemoryBusWidth": 6144,
        }

    @property
    def mem_info(self) -> tuple[int, int]:
        return memGetInfo()

    @property
    def pci_bus_id(self) -> str:
        return deviceGetPCIBusId(self.id)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id


module = ModuleType("cupy.cuda.runtime")
module.__dict__.update({name: value for name, value in globals().items() if name[0].islower() and name != "module"})
module.__dict__.update(
    CUDARuntimeError=CUDARuntimeError,
    is_hip=False,
    memcpyHostToHost=HOST_TO_HOST,
    memcpyHostToDevice=HOST_TO_DEVICE,
    memcpyDeviceToHost=DEVICE_TO_HOST,
    memcpyDeviceToDevice=DEVICE_TO_DEVICE,
    memcpyDefault=DEFAULT,
    streamCaptureModeGlobal=streams.GLOBAL,
    streamCaptureModeThreadLocal=streams.THREAD_LOCAL,
    streamCaptureModeRelaxed=streams.RELAXED,
    CUDA_R_32F=0,
    CUDA_R_64F=1,
    CUDA_R_16F=2,
    CUDA_R_8I=3,
    CUDA_R_16BF=14,
    cudaDevAttrMultiProcessorCount=16,
    cudaDevAttrL2CacheSize=38,
    cudaDevAttrWarpSize=10,
)
