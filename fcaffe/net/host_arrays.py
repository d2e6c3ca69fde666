"""Host arrays for user code: live, writable arrays in C order for blobs in host memory."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from fcaffe.engines import Engine
from fcaffe.net.blob import Blob
from fcaffe.net.cached_weights import CachedWeights
from fcaffe.net.engine_lock import engine_lock
from fcaffe.net.exposure import Exposure, HostCopy
from fcaffe.net.storage import Storage


class Follower(Protocol):
    """An object that computes values when user code reads them, from earlier values; see `fcaffe.net.on_demand`."""

    def preserve(self, storages: Iterable[Storage]) -> None: ...

    def runs(self, blob: Blob) -> bool: ...

    def complete(self) -> None: ...


class HostViews:
    """Arrays for blobs in host memory. Each is live for as long as user code holds it.

    If a blob has float32 values in C order, user code gets its own memory. Otherwise it gets a float32 copy in C order.
    `push` copies what user code may have written back into the blobs, and drops the copies that nobody holds. `pull`
    updates the copies that user code still holds. So the results and the speed of a pass do not depend on what a script
    reads.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._exposed: list[Exposure] = []  # storages whose own memory user code may hold
        self._copied: list[tuple[Exposure, HostCopy]] = []  # storages of which it may hold a copy
        self._given: weakref.WeakSet[Blob] = weakref.WeakSet()  # blobs that no layer writes
        self._weights = CachedWeights(engine)
        self._beyond: weakref.WeakKeyDictionary[Storage, Any] = weakref.WeakKeyDictionary()  # see `_in_c_order`
        self.reads = 0  # sequence number of the last read by user code
        self._followers: list[weakref.ref[Follower]] = []
        self._changing: set[Storage] = set()  # storages that the engine's current work changes

    def follow(self, follower: Follower) -> None:
        """Call this follower before values change."""
        self._followers.append(weakref.ref(follower, self._followers.remove))

    def keep_copies(self, blobs: Iterable[Blob]) -> None:
        """Copies of these blobs last: only user code writes their data."""
        self._given.update(blobs)

    def read_since(self, storages: Iterable[Storage], since: int) -> set[Storage]:
        """The storages that user code holds an array of, or has read after the read with this sequence number."""
        seen = ((storage, storage.exposure) for storage in storages if storage.exposure is not None)
        return {storage for storage, exposure in seen if exposure.last_read > since or exposure.is_held}

    def held(self) -> list[Storage]:
        """The storages of which user code holds an array."""
        copied = (exposure.storage() for exposure, copy in self._copied if copy.held() is not None)
        return [*self.exposed(), *(storage for storage in copied if storage is not None)]

    def exposed(self) -> list[Storage]:
        """The storages whose own memory user code holds, and may write at any moment."""
        if not self._exposed:
            return []
        held = []
        for exposure in self._exposed:
            exposure.is_exposed = exposure.window() is not None
            if exposure.is_exposed:
                held.append(exposure)
        self._exposed = held
        return [storage for exposure in held if (storage := exposure.storage()) is not None]

    @contextlib.contextmanager
    def changing(self, blobs: Iterable[Blob]) -> Iterator[None]:
        """The body lets the engine change the data of these blobs. It may call user code."""
        before = self._changing
        self._changing = before | {blob.data_storage for blob in blobs}
        self._preserve(self._changing)
        try:
            yield
        finally:
            self._changing = before

    def prepare(self, blobs: Iterable[Blob]) -> None:
        """Switch these blobs, which user code reads within passes, to C order. This saves copies."""
        for blob in blobs:
            blob.make_contiguous()

    def data(self, blob: Blob) -> np.ndarray:
        with engine_lock():
            return self._expose(blob, blob.data_storage)

    def diff(self, blob: Blob) -> np.ndarray:
        with engine_lock():
            return self._expose(blob, blob.diff_storage)

    def device_address(self, blob: Blob, storage: Storage) -> int:
        """The address of the values in the memory of a GPU, in C order. Raises AttributeError if they are elsewhere."""
        raise AttributeError("the blob's values are in host memory: they have an address on a GPU only in GPU mode")

    @contextlib.contextmanager
    def engine_at_work(self) -> Iterator[None]:
        """The body uses the blobs. It gets what user code has written; afterwards user code's arrays have its
        results."""
        with engine_lock():
            self.push()
            try:
                yield
            finally:
                self.pull()

    @contextlib.contextmanager
    def user_at_work(self) -> Iterator[None]:
        """The body calls user code within a pass, with the engine lock released.

        Other threads find the engine as between two passes. Afterwards it has the state of this pass again.
        """
        self.pull()
        changing, self._changing = self._changing, set()
        try:
            with self._engine.other_weights(), engine_lock().released():
                yield
        finally:
            self._changing = changing
            self.push()

    def push(self) -> None:
        """Copy what user code has written into the blobs. To be called before the engine uses them."""
        self._preserve(self._changing)
        copied, self._copied = self._copied, []
        for exposure, copy in copied:
            storage = exposure.storage()
            stays = storage is not None and copy.lasting and copy.values is not None and copy.is_held_by_user()
            if copy.values is not None and storage is not None:
                self._preserve((storage,))
                self._engine.copy(copy.array, storage.view(copy.shape))
                copy.is_same = True
            if stays:
                copy.is_same = False  # user code may write it now, in another thread
            else:
                copy.values = None
            copy.is_listed = copy.held() is not None
            if copy.is_listed:
                self._copied.append((exposure, copy))
            elif not copy.lasting:
                exposure.copy = None

    def pull(self) -> None:
        """Update the arrays that user code holds. To be called after the engine has changed blobs."""
        for exposure, copy in self._copied:
            storage, values, blob = exposure.storage(), copy.held(), copy.blob()
            if copy.values is not None or values is None or storage is None or blob is None:
                continue
            if blob.uses(storage):
                self._fill(copy, values, storage, blob)
        for storage in self.exposed():
            storage.settle()

    def reshape(self, blob: Blob, shape: tuple[int, ...]) -> None:
        """Reshape a blob. Its values keep their positions in C order. Values beyond a smaller shape reappear with a
        larger one, as in Caffe."""
        with engine_lock():
            for follower in self._all_followers():
                if follower.runs(blob) and blob.shape != shape:
                    follower.complete()
        with self.engine_at_work():
            if blob.data_storage.exposure is not None and blob.data_storage.exposure.copy is not None:
                blob.data_storage.exposure.copy.values, blob.data_storage.exposure.copy.is_same = None, False
            storages = blob.data_storage, blob.diff_storage
            values = [self._in_c_order(blob, storage, shape) for storage in storages]
            blob.reshape(*shape)
            if blob.data_storage is storages[0]:  # else the memory is new and zero
                for storage, flat in zip(storages, values, strict=True):
                    if flat is not None:
                        storage.view(shape)[...] = flat[: blob.count].reshape(shape)

    def _in_c_order(self, blob: Blob, storage: Storage, shape: tuple[int, ...]) -> Any:
        """All values of a storage in C order, including those beyond the blob's present shape. None if the new shape
        does not change their positions in memory."""
        flat = self._beyond.pop(storage, None)
        if flat is None and blob.shape[1:] == shape[1:]:
            return None
        samples = blob.shape[0] if blob.shape else 1
        if flat is None:
            flat = blob.xp.zeros(storage.size, storage.dtype)
            samples = storage.size // (math.prod(blob.shape[1:]) or 1)
        present = storage.view((samples, *blob.shape[1:]) if blob.shape else ())
        flat[: present.size] = blob.xp.ascontiguousarray(present).reshape(-1)
        if math.prod(shape) < storage.size:
            self._beyond[storage] = flat
        return flat

    def same_weights(self, net: Any) -> AbstractContextManager[None]:
        """The body is a forward pass of this net. The engine caches derived weights for the next pass, except of
        weights that user code may write in between."""
        return self._weights.same(net, self.exposed)

    @contextlib.contextmanager
    def new_weights(self, net: Any) -> Iterator[None]:
        """The body changes or moves weights of this net."""
        with self._weights.change(), self.changing(blob for layer in net.layers for blob in layer.blobs):
            yield

    def _all_followers(self) -> list[Follower]:
        return [follower for reference in tuple(self._followers) if (follower := reference()) is not None]

    def _preserve(self, storages: Collection[Storage]) -> None:
        for follower in self._all_followers() if storages else ():
            follower.preserve(storages)

    def _expose(self, blob: Blob, storage: Storage) -> np.ndarray:
        self.reads += 1
        exposure = storage.exposure
        if exposure is None:
            exposure = storage.exposure = Exposure(storage)
        exposure.last_read = self.reads
        copy, half = exposure.copy, self._engine.half_dtype
        is_wide = half is None or storage.dtype != half
        if copy is None and is_wide and storage.view(blob.shape).flags.c_contiguous:
            storage.make_contiguous(blob.shape)
            return self._window(storage, exposure)[: blob.count].reshape(blob.shape)
        if copy is None:
            copy = exposure.copy = HostCopy(lasting=is_wide and blob in self._given and storage is blob.data_storage)
        values = copy.held()
        if values is None:
            values = copy.allocate(storage.size, storage.dtype if is_wide else np.float32)
            if not copy.is_listed:
                copy.is_listed = True
                self._copied.append((exposure, copy))
        owner = copy.blob()
        lasts = copy.lasting and copy.values is not None and blob not in self._given
        if lasts and owner is not None and owner.shape == copy.shape and blob.count <= values.size:
            return values[: blob.count].reshape(blob.shape)  # a Split of a reshaped input: unchanged
        if copy.values is None or copy.shape != blob.shape:
            if copy.values is not None:  # for a blob of another shape with the same memory
                self._engine.copy(copy.array, storage.view(copy.shape))
                copy.is_same = False
            self._fill(copy, values, storage, blob)
        return copy.array

    def _fill(self, copy: HostCopy, values: np.ndarray, storage: Storage, blob: Blob) -> None:
        """Copy the values of this blob into the copy, which user code may write from now on."""
        is_same = copy.lasting and copy.is_same and copy.shape == blob.shape
        copy.values, copy.shape, copy.blob, copy.is_same = values, blob.shape, weakref.ref(blob), False
        if not is_same:
            self._engine.copy(storage.view(blob.shape), copy.array)

    def _window(self, storage: Storage, exposure: Exposure) -> np.ndarray:
        """A flat array of the storage's memory. Views of it keep it alive, which tells whether user code holds one."""
        address = storage.address
        self._weights.drop(address)
        self._preserve((storage,))
        window: np.ndarray | None = exposure.window()
        if window is None or exposure.address != address:
            window = storage.window()
            exposure.window, exposure.address = weakref.ref(window), address
            if not exposure.is_exposed:
                exposure.is_exposed = True
                self._exposed.append(exposure)
        return window
