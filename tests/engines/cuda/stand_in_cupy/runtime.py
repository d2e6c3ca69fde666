"""cupy.cuda.runtime: `DEVICES` H200s, one of which is the current one of each thread."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from tests.engines.cuda.stand_in_cupy import errors, memory, streams
from tests.engines.cuda.stand_in_cupy.errors import CUDARuntimeError

DEVICES = 1
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = range(1, 4)


def getDeviceCount() -> int:  # noqa: N802
    return DEVICES


def _check(device: int) -> None:
    if not 0 <= device < DEVICES:
        raise CUDARuntimeError(errors.INVALID_DEVICE)


def getDevice() -> int:  # noqa: N802
    return streams.device()


def setDevice(device: int) -> None:  # noqa: N802
    _check(device)
    streams.use_device(device)


def deviceGetPCIBusId(device: int) -> str:  # noqa: N802
    _check(device)
    return f"0000:{0x19 + device:02x}:00.0"


def deviceSynchronize() -> None:  # noqa: N802
    streams.synchronise_device("deviceSynchronize")


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


class Device:
    def __init__(self, device: int | None = None) -> None:
        self.id = getDevice() if device is None else int(device)
        _check(self.id)

    def use(self) -> None:
        setDevice(self.id)

    @property
    def mem_info(self) -> tuple[int, int]:
        return memGetInfo()


module = ModuleType("cupy.cuda.runtime")
module.__dict__.update({name: value for name, value in globals().items() if name[0].islower() and name != "module"})
module.__dict__.update(
    CUDARuntimeError=CUDARuntimeError,
    memcpyHostToDevice=HOST_TO_DEVICE,
    memcpyDeviceToHost=DEVICE_TO_HOST,
    memcpyDeviceToDevice=DEVICE_TO_DEVICE,
    streamCaptureModeGlobal=streams.GLOBAL,
    streamCaptureModeThreadLocal=streams.THREAD_LOCAL,
    streamCaptureModeRelaxed=streams.RELAXED,
)
