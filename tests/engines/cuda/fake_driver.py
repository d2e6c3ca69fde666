"""A stand-in for libcuda: GPUs by their names, with the attributes of one of NVIDIA's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fcaffe.engines.cuda import driver

ATTRIBUTES = {
    driver.MAX_THREADS: 1024,
    **dict(enumerate((1024, 1024, 64), driver.BLOCK_X)),
    **dict(enumerate((2147483647, 65535, 65535), driver.GRID_X)),
    driver.SHARED_MEMORY: 49152,
    driver.CONSTANT_MEMORY: 65536,
    driver.WARP: 32,
    driver.PITCH: 2147483647,
    driver.REGISTERS: 65536,
    driver.CLOCK: 1980000,
    driver.TEXTURE_ALIGNMENT: 512,
    driver.OVERLAP: 1,
    driver.MULTIPROCESSORS: 132,
    driver.TIMEOUT: 0,
}
MEMORY = 150754820096


class FakeDriver:
    """`code` is what cuInit returns; `version` as cuDriverGetVersion has it."""

    def __init__(
        self,
        names: Sequence[str] = ("NVIDIA H200",),
        version: int = 13000,
        capability: tuple[int, int] = (9, 0),
        code: int = 0,
    ) -> None:
        self.names = names
        self.version = version
        self.attributes = {**ATTRIBUTES, driver.MAJOR: capability[0], driver.MINOR: capability[1]}
        self.code = code

    def cuInit(self, flags: int) -> int:  # noqa: N802 - CUDA's names
        return self.code

    def cuGetErrorString(self, code: int, words: Any) -> int:  # noqa: N802
        words._obj.value = b"so it is"
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.names)
        return 0

    def cuDeviceGet(self, handle: Any, number: int) -> int:  # noqa: N802
        handle._obj.value = 10 + number
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, handle: int) -> int:  # noqa: N802
        value._obj.value = self.attributes[attribute]
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, handle: int) -> int:  # noqa: N802
        memory._obj.value = MEMORY
        return 0

    def cuDeviceGetName(self, name: Any, length: int, handle: int) -> int:  # noqa: N802
        name.value = self.names[handle - 10].encode()
        return 0

    def cuDeviceGetPCIBusId(self, address: Any, length: int, handle: int) -> int:  # noqa: N802
        address.value = f"0000:{handle:02x}:00.0".encode()
        return 0
