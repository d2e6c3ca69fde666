"""The host views of an engine: writable NumPy arrays in C order for its blobs, in host memory or on a device."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

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

    in_host_memory = False

    def prepare(self, blobs: Iterable[Blob]) -> None:
        pass

    def push(self) -> None:
        copies, self._copies = self._copies, set()
        for exposure in copies:
            self._write_back(exposure)
            exposure.copy, exposure.may_differ = None, False

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

    def _copy_out(self, storage: Storage, shape: tuple[int, ...], array: np.ndarray) -> None:
        array[...] = self._engine.to_numpy(storage.view(shape))

    def _copy_in(self, array: np.ndarray, storage: Storage, shape: tuple[int, ...]) -> None:
        storage.view(shape)[...] = self._engine.from_numpy(array)


def host_views(engine: Engine) -> HostViews:
    """The host views for the blobs of this engine: one object per engine."""
    found = _views.get(id(engine))
    if found is None:
        kind = HostViews if engine.xp is np else DeviceViews
        found = _views[id(engine)] = kind(weakref.proxy(engine))
        weakref.finalize(engine, _views.pop, id(engine), None)
    return found


_views: dict[int, HostViews] = {}  # by the engine's id
