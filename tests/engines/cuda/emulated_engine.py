"""Operators of the GPU engine with their kernels run by the emulator, over NumPy's arrays or a stand-in's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from fcaffe.engines import Engine
from fcaffe.engines.cuda.elementwise import Elementwise
from fcaffe.engines.cuda.kernels import Kernels
from fcaffe.engines.cuda.update import Update
from fcaffe.engines.elementwise import PlainElementwise
from tests.engines.cuda import stand_in_cupy
from tests.engines.cuda.emulator import Emulated


class EmulatedEngine(Elementwise, Update, Engine):
    """Those that need no library but our own kernels."""

    name = "emulated"
    copy = PlainElementwise.copy  # NumPy's arrays have no addresses on a device

    def __init__(self, xp: Any = np) -> None:
        super().__init__(xp)
        self.kernels = Kernels(SimpleNamespace(RawModule=Emulated) if xp is np else xp)
        self.counters = xp.zeros(4, np.uint64)
        self.step = xp.zeros(2, np.float32)
        self.overflow = xp.zeros(1, np.int32)
        self.loss_scale = None

    def set_counters(self, *counters: int) -> None:
        self.counters[...] = self.xp.asarray(np.array(counters, np.uint64))

    def set_step(self, rate: float, gradient_scale: float) -> None:
        self.step[...] = self.xp.asarray(np.array([rate, gradient_scale], np.float32))


class DeviceEngine(EmulatedEngine):
    """On arrays that are not NumPy's, with streams and graphs."""

    asynchronous = True

    def __init__(self) -> None:
        super().__init__(stand_in_cupy.cupy)

    def to_numpy(self, array: Any) -> np.ndarray:
        return array if isinstance(array, np.ndarray) else array.get()


def channels_last(array: np.ndarray) -> np.ndarray:
    """The same values (N, C, spatial...) with the channels last in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
