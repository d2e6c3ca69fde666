"""Host arrays for user code: writable arrays in C order for blobs, in host memory or on a device.

Arrays of blobs in host memory are live. For each storage user code gets one of two:

    window   the storage's own memory, if it has float32 values in C order. Nothing is copied
    copy     else a float32 copy in C order. `push` writes it back to the storage, `pull` updates it from the storage

`engine_at_work` encloses all work of the engine, and `user_at_work` each call of user code within a pass:

    user code | push, layers, pull | user code | push, layers, pull, Python layer, push, layers, pull | user code

An array is live for as long as user code holds it, which its number of references tells.
"""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fcaffe.engines import Engine
from fcaffe.errors import NetError
from fcaffe.net.blob import Blob, Storage
from fcaffe.net.script.engine_lock import engine_lock


class Exposure:
    """The flat arrays of one storage that user code may hold: a window or a copy."""

    def __init__(self, storage: Storage) -> None:
        self.storage = weakref.ref(storage)
        self.window: np.ndarray | None = None
        self.address = 0  # of the window
        self.copy: np.ndarray | None = None  # the values of `blob`, one of the blobs of this storage
        self.may_differ = False  # user code may have written values into the copy that the blob does not have yet
        self.was_read = False  # since a pass has last asked
        self.shape: tuple[int, ...] = ()
        self.blob: Any = lambda: None  # a weak reference

    @property
    def window_is_held(self) -> bool:
        return sys.getrefcount(self.window) > 2  # views of it, beside `window` and the call's own reference

    @property
    def copy_is_held(self) -> bool:
        return sys.getrefcount(self.copy) > 2

    @property
    def array(self) -> np.ndarray:
        """The copy in the shape of its blob."""
        assert self.copy is not None
        return self.copy[: math.prod(self.shape)].reshape(self.shape)


class HostViews:
    """The arrays that user code gets for the blobs of one engine, in host memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._windows: set[Exposure] = set()  # with a window that user code may hold
        self._copies: set[Exposure] = set()  # with a copy that user code may hold

    def data(self, blob: Blob) -> np.ndarray:
        with engine_lock():
            return self._expose(blob, blob.data_storage)

    def diff(self, blob: Blob) -> np.ndarray:
        with engine_lock():
            return self._expose(blob, blob.diff_storage)

    def device_address(self, blob: Blob, storage: Storage) -> int:
        """The address of the values in the memory of a GPU, in C order. Raises AttributeError if they are elsewhere."""
        raise AttributeError("the blob's values are in host memory: they have an address on a GPU only in GPU mode")

    def reshape(self, blob: Blob, shape: tuple[int, ...]) -> None:
        """Reshape a blob. Its values keep their positions in C order, and values beyond a smaller shape reappear with a
        larger one, as in Caffe. If more than the number of samples changes, the blob switches to C order."""
        with engine_lock():
            for follower in list(blob.data_storage.followers) if blob.shape != shape else ():
                follower.complete()
        with self.engine_at_work():
            if blob.shape[1:] != shape[1:]:
                for storage in (blob.data_storage, blob.diff_storage):
                    samples = storage.size // (math.prod(blob.shape[1:]) or 1)
                    storage.make_contiguous((samples, *blob.shape[1:]))
            blob.reshape(*shape)

    @contextlib.contextmanager
    def engine_at_work(self) -> Iterator[None]:
        """The body runs layers."""
        with engine_lock():
            self.push()
            try:
                yield
            finally:
                self.pull()

    @contextlib.contextmanager
    def user_at_work(self) -> Iterator[None]:
        """The body calls user code within a pass, with the engine lock released."""
        self.pull()
        try:
            with engine_lock().released():
                yield
        finally:
            self.push()

    def push(self) -> None:
        """Copy what user code has written into the blobs, and drop copies that it does not hold."""
        for exposure in tuple(self._copies):
            is_held = exposure.copy_is_held  # first: another thread may write to an array, and drop it, meanwhile
            self._write_back(exposure)
            exposure.may_differ = False
            if not is_held:
                exposure.copy = None
                self._copies.discard(exposure)

    def pull(self) -> None:
        """Update the arrays that user code holds."""
        for exposure in tuple(self._copies):
            storage, blob = exposure.storage(), exposure.blob()
            if exposure.may_differ or not exposure.copy_is_held or storage is None or blob is None:
                continue
            if storage in (blob.data_storage, blob.diff_storage):
                self._fill(exposure, storage, blob)
        for storage in self.exposed():
            storage.settle()

    def prepare(self, blobs: Iterable[Blob]) -> None:
        """Switch these blobs, which user code writes or reads in each pass, to C order. This saves copies."""
        for blob in blobs:
            blob.make_contiguous()

    def held(self) -> list[Storage]:
        """The storages whose arrays user code holds."""
        return [*self.exposed(), *_storages(exposure for exposure in self._copies if exposure.copy_is_held)]

    def exposed(self) -> list[Storage]:
        """The storages whose own memory user code holds, and may write at any moment."""
        for exposure in [exposure for exposure in self._windows if not exposure.window_is_held]:
            exposure.window = None
            self._windows.discard(exposure)
        return _storages(self._windows)

    def _expose(self, blob: Blob, storage: Storage) -> np.ndarray:
        self._engine.make_current()
        storage.exposure = exposure = storage.exposure or Exposure(storage)
        exposure.was_read = True
        half = self._engine.half_dtype
        is_wide = self._engine.xp is np and (half is None or storage.dtype != half)
        if exposure.copy is None and is_wide and storage.view(blob.shape).flags.c_contiguous:
            storage.make_contiguous(blob.shape)
            return self._window(storage, exposure)[: blob.count].reshape(blob.shape)
        has_values = exposure.copy is not None and exposure.shape == blob.shape
        if exposure.copy is None:
            exposure.copy = np.empty(storage.size, storage.dtype if is_wide else np.float32)
            self._copies.add(exposure)
        if not (has_values and exposure.may_differ):
            self._write_back(exposure)  # a blob of another shape with the same memory
            self._fill(exposure, storage, blob)
        exposure.may_differ = True
        return exposure.array

    def _window(self, storage: Storage, exposure: Exposure) -> np.ndarray:
        """A flat array of the storage's memory."""
        address = storage.address
        storage.change()
        if exposure.window is None or exposure.address != address:
            exposure.window, exposure.address = storage.window(), address
            self._windows.add(exposure)
        return exposure.window

    def _fill(self, exposure: Exposure, storage: Storage, blob: Blob) -> None:
        """Copy the values of this blob into the copy."""
        exposure.may_differ, exposure.shape, exposure.blob = True, blob.shape, weakref.ref(blob)
        self._copy_out(storage, blob.shape, exposure.array)

    def _write_back(self, exposure: Exposure) -> None:
        """Copy the copy into the storage."""
        storage = exposure.storage()
        if exposure.may_differ and storage is not None:
            storage.change()
            self._copy_in(exposure.array, storage, exposure.shape)

    def _copy_out(self, storage: Storage, shape: tuple[int, ...], array: np.ndarray) -> None:
        self._engine.copy(storage.view(shape), array)

    def _copy_in(self, array: np.ndarray, storage: Storage, shape: tuple[int, ...]) -> None:
        self._engine.copy(array, storage.view(shape))


class DeviceViews(HostViews):
    """Copies of blobs on a device, taken when user code asks for them and written back by `push`. As in Caffe an array
    from before the last pass is out of date."""

    def prepare(self, blobs: Iterable[Blob]) -> None:
        pass

    def push(self) -> None:
        self._engine.make_current()
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
    if engine.host_views is None:
        kind = HostViews if engine.xp is np else DeviceViews
        engine.host_views = kind(weakref.proxy(engine))
    views: HostViews = engine.host_views
    return views


def _storages(exposures: Iterable[Exposure]) -> list[Storage]:
    return [storage for exposure in exposures if (storage := exposure.storage()) is not None]
