"""Host copies of blobs on a device, for user code."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from fcaffe.engines import Engine
from fcaffe.errors import NetError
from fcaffe.net.blob import Blob
from fcaffe.net.engine_lock import engine_lock
from fcaffe.net.host_arrays import HostViews
from fcaffe.net.storage import Storage


class DeviceViews(HostViews):
    """Copies of blobs on a device, taken when user code asks for them and written back by `push`.

    As in Caffe an array from before the last pass is out of date. User code has to ask for it again.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._on_host: weakref.WeakKeyDictionary[Storage, DeviceCopy] = weakref.WeakKeyDictionary()
        self._written: list[tuple[Storage, DeviceCopy]] = []  # that user code may have written

    def prepare(self, blobs: Iterable[Blob]) -> None:
        pass

    def push(self) -> None:
        written, self._written = self._written, []
        for storage, copy in written:
            copy.exposed = False
            storage.view(copy.shape)[...] = self._engine.from_numpy(copy.array)
        if any(storage.has_moved for storage, _ in written):
            self._engine.refresh_parameters()

    def pull(self) -> None:
        pass

    def device_address(self, blob: Blob, storage: Storage) -> int:
        with engine_lock():
            self.push()
            blob.make_contiguous()
            values = storage.view(blob.shape)
        if not values.flags.c_contiguous:
            raise NetError(f"a solver's parameter {blob.shape} is not in C order: take the address in a net of its own")
        return int(values.data.ptr)

    def _expose(self, blob: Blob, storage: Storage) -> np.ndarray:
        shape = blob.shape
        if (copy := self._on_host.get(storage)) is None:
            copy = self._on_host[storage] = DeviceCopy(storage.size)
        if copy.exposed and copy.shape != shape:  # another blob, of another shape, with the same memory
            self.push()
        if not copy.exposed:
            copy.shape, copy.exposed = shape, True
            copy.array[...] = self._engine.to_numpy(storage.view(shape))
            self._written.append((storage, copy))
        return copy.array


class DeviceCopy:
    """float32 memory for the values of a storage on a device, seen in one shape at a time."""

    def __init__(self, size: int) -> None:
        self._flat: Any = np.empty(size, np.float32)
        self.shape: tuple[int, ...] = ()
        self.exposed = False

    @property
    def array(self) -> np.ndarray:
        return self._flat[: math.prod(self.shape)].reshape(self.shape)
