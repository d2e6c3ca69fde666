"""Arrays for blobs in host memory: in C order, live, and free to be written."""

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
from fcaffe.net.shown import HostCopy, Shown
from fcaffe.net.storage import Storage


class Follower(Protocol):
    """Who computes values when somebody looks, from others as they were; see `fcaffe.net.on_demand`."""

    def preserve(self, storages: Iterable[Storage]) -> None: ...

    def runs(self, blob: Blob) -> bool: ...

    def complete(self) -> None: ...


class HostViews:
    """Arrays for blobs in host memory; each is live for as long as user code holds it.

    A blob whose float32 values lie in C order is shown itself. A channels-last one, or one of 16 bits, stays as it is,
    and user code gets a float32 copy in C order. `push` writes what may have been written into a copy back into its
    blob, and forgets the copies that nobody holds any more; `pull` brings the copies that user code still holds up to
    date. So what the layers compute, and how fast, does not depend on what a script has looked at.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._exposed: list[Shown] = []  # whose own memory user code may have an array of
        self._copied: list[tuple[Shown, HostCopy]] = []  # of which it may have a copy
        self._given: weakref.WeakSet[Blob] = weakref.WeakSet()  # which no layer writes
        self._weights = CachedWeights(engine)
        self._beyond: weakref.WeakKeyDictionary[Storage, Any] = weakref.WeakKeyDictionary()  # see `_in_c_order`
        self.reads = 0  # by user code, of storages
        self._followers: list[weakref.ref[Follower]] = []
        self._changing: set[Storage] = set()  # what the engine's present work changes

    def follow(self, follower: Follower) -> None:
        """Tell this one, from now on, of values that may change."""
        self._followers.append(weakref.ref(follower, self._followers.remove))

    def keep_copies(self, blobs: Iterable[Blob]) -> None:
        """Nobody but user code writes the data of these: a copy of them holds until it does, and is kept."""
        self._given.update(blobs)

    def read_since(self, storages: Iterable[Storage], since: int) -> set[Storage]:
        """Those of these that user code holds an array of, or has read after that number of reads."""
        seen = ((storage, storage.shown) for storage in storages if storage.shown is not None)
        return {storage for storage, shown in seen if shown.last_read > since or shown.is_held}

    def held(self) -> list[Storage]:
        """The storages that user code holds an array of."""
        copied = (shown.storage() for shown, copy in self._copied if copy.held() is not None)
        return [*self.exposed(), *(storage for storage in copied if storage is not None)]

    def exposed(self) -> list[Storage]:
        """The storages whose own memory user code has an array of, which it may write at any moment."""
        if not self._exposed:
            return []
        held = []
        for shown in self._exposed:
            shown.is_exposed = shown.window() is not None
            if shown.is_exposed:
                held.append(shown)
        self._exposed = held
        return [storage for shown in held if (storage := shown.storage()) is not None]

    @contextlib.contextmanager
    def changing(self, blobs: Iterable[Blob]) -> Iterator[None]:
        """Its body lets the engine change the data of these, and user code may work amid it."""
        before = self._changing
        self._changing = before | {blob.data_storage for blob in blobs}
        self._preserve(self._changing)
        try:
            yield
        finally:
            self._changing = before

    def prepare(self, blobs: Iterable[Blob]) -> None:
        """User code will see these in the middle of passes: let them lie in C order for good, which saves copies."""
        for blob in blobs:
            blob.make_contiguous()

    def data(self, blob: Blob) -> np.ndarray:
        with engine_lock():
            return self._show(blob, blob.data_storage)

    def diff(self, blob: Blob) -> np.ndarray:
        with engine_lock():
            return self._show(blob, blob.diff_storage)

    def device_address(self, blob: Blob, storage: Storage) -> int:
        """Where the values of the blob lie in the memory of a GPU, in C order. AttributeError if they do not."""
        raise AttributeError("the blob's values lie in host memory: only in GPU mode have they an address on a GPU")

    @contextlib.contextmanager
    def engine_at_work(self) -> Iterator[None]:
        """Its body works with the blobs: before it counts what user code has written, after it user code sees what has
        come of it."""
        with engine_lock():
            self.push()
            try:
                yield
            finally:
                self.pull()

    @contextlib.contextmanager
    def user_at_work(self) -> Iterator[None]:
        """Its body, amid the work of the engine, calls user code, while other threads may use the engine too.

        They find the engine as between two passes; afterwards it has the state of this pass again.
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
        """Before the engine works: from now on what user code has written counts."""
        self._preserve(self._changing)
        copied, self._copied = self._copied, []
        for shown, copy in copied:
            storage = shown.storage()
            stays = storage is not None and copy.lasting and copy.values is not None and copy.is_elsewhere()
            if copy.values is not None and storage is not None:
                self._preserve((storage,))
                self._engine.copy(copy.array, storage.view(copy.shape))
                copy.is_same = True
            if stays:
                copy.is_same = False  # no layer writes it, but user code may, in another thread even now
            else:
                copy.values = None
            copy.is_listed = copy.held() is not None
            if copy.is_listed:
                self._copied.append((shown, copy))
            elif not copy.lasting:
                shown.copy = None

    def pull(self) -> None:
        """After the engine has worked: the arrays that user code holds have the blobs' values again."""
        for shown, copy in self._copied:
            storage, values, blob = shown.storage(), copy.held(), copy.blob()
            if copy.values is not None or values is None or storage is None or blob is None:
                continue
            if blob.uses(storage):
                self._fill(copy, values, storage, blob)
        for storage in self.exposed():
            storage.settle()

    def reshape(self, blob: Blob, shape: tuple[int, ...]) -> None:
        """Give a blob another shape. Its values keep their positions in C order; those beyond a smaller shape come back
        with a larger one, as in Caffe."""
        with engine_lock():
            for follower in self._all_followers():
                if follower.runs(blob) and blob.shape != shape:
                    follower.complete()
        with self.engine_at_work():
            if blob.data_storage.shown is not None and blob.data_storage.shown.copy is not None:
                blob.data_storage.shown.copy.values, blob.data_storage.shown.copy.is_same = None, False
            storages = blob.data_storage, blob.diff_storage
            values = [self._in_c_order(blob, storage, shape) for storage in storages]
            blob.reshape(*shape)
            if blob.data_storage is storages[0]:  # else the memory is new, and zero
                for storage, flat in zip(storages, values, strict=True):
                    if flat is not None:
                        storage.view(shape)[...] = flat[: blob.count].reshape(shape)

    def _in_c_order(self, blob: Blob, storage: Storage, shape: tuple[int, ...]) -> Any:
        """All values of a storage in C order, with those beyond a blob that was made smaller before. None if they keep
        their positions in memory when the blob takes this shape."""
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
        """Its body is a forward pass of this net. What the engine makes of the weights is kept for the next pass, but
        for those that user code could write meanwhile."""
        return self._weights.same(net, self.exposed)

    @contextlib.contextmanager
    def new_weights(self, net: Any) -> Iterator[None]:
        """Its body changes weights of this net, or where they lie."""
        with self._weights.change(), self.changing(blob for layer in net.layers for blob in layer.blobs):
            yield

    def _all_followers(self) -> list[Follower]:
        return [follower for reference in tuple(self._followers) if (follower := reference()) is not None]

    def _preserve(self, storages: Collection[Storage]) -> None:
        for follower in self._all_followers() if storages else ():
            follower.preserve(storages)

    def _show(self, blob: Blob, storage: Storage) -> np.ndarray:
        self.reads += 1
        shown = storage.shown
        if shown is None:
            shown = storage.shown = Shown(storage)
        shown.last_read = self.reads
        copy, half = shown.copy, self._engine.half_dtype
        is_wide = half is None or storage.dtype != half
        if copy is None and is_wide and storage.view(blob.shape).flags.c_contiguous:
            storage.make_contiguous(blob.shape)
            return self._window(storage, shown)[: blob.count].reshape(blob.shape)
        if copy is None:
            copy = shown.copy = HostCopy(lasting=is_wide and blob in self._given and storage is blob.data_storage)
        values = copy.held()
        if values is None:
            values = copy.lend(storage.size, storage.dtype if is_wide else np.float32)
            if not copy.is_listed:
                copy.is_listed = True
                self._copied.append((shown, copy))
        owner = copy.blob()
        lasts = copy.lasting and copy.values is not None and blob not in self._given
        if lasts and owner is not None and owner.shape == copy.shape and blob.count <= values.size:
            return values[: blob.count].reshape(blob.shape)  # a Split of an input that has been reshaped: as it was
        if copy.values is None or copy.shape != blob.shape:
            if copy.values is not None:  # lent to a blob of another shape with the same memory
                self._engine.copy(copy.array, storage.view(copy.shape))
                copy.is_same = False
            self._fill(copy, values, storage, blob)
        return copy.array

    def _fill(self, copy: HostCopy, values: np.ndarray, storage: Storage, blob: Blob) -> None:
        """Let the copy have the values of this blob, which user code may write from now on."""
        is_same = copy.lasting and copy.is_same and copy.shape == blob.shape
        copy.values, copy.shape, copy.blob, copy.is_same = values, blob.shape, weakref.ref(blob), False
        if not is_same:
            self._engine.copy(storage.view(blob.shape), copy.array)

    def _window(self, storage: Storage, shown: Shown) -> np.ndarray:
        """The flat memory of a storage. The arrays that are made of it keep it, so that one knows whether user code has
        any; and it may write now."""
        address = storage.address
        self._weights.drop(address)
        self._preserve((storage,))
        window: np.ndarray | None = shown.window()
        if window is None or shown.address != address:
            window = storage.window()
            shown.window, shown.address = weakref.ref(window), address
            if not shown.is_exposed:
                shown.is_exposed = True
                self._exposed.append(shown)
        return window
