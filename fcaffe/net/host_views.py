"""Blobs as user code sees them: NumPy arrays in C order that can be written, wherever and however the blobs lie."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from fcaffe.engines import Engine
from fcaffe.engines.memory import address
from fcaffe.errors import NetError
from fcaffe.net.blob import Blob
from fcaffe.net.kept_weights import KeptWeights
from fcaffe.net.storage import Storage


def host_views(engine: Engine) -> HostViews:
    """Those of the blobs of this engine; the same ones each time."""
    found = _views.get(id(engine))
    if found is None:
        kind = HostViews if engine.xp is np else HostCopies
        found = _views[id(engine)] = kind(weakref.proxy(engine))
        weakref.finalize(engine, _views.pop, id(engine), None)
    return found


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
        self._copies: weakref.WeakKeyDictionary[Storage, Any] = weakref.WeakKeyDictionary()
        self._windows: weakref.WeakKeyDictionary[Storage, weakref.ref[np.ndarray]] = weakref.WeakKeyDictionary()
        self._weights = KeptWeights(engine)
        self.looks = 0  # of user code at storages
        self._looked: weakref.WeakKeyDictionary[Storage, int] = weakref.WeakKeyDictionary()  # number of the last look
        self._followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self._changing: set[Storage] = set()  # what the engine's present work changes

    def follow(self, follower: Follower) -> None:
        """Tell this one, from now on, of values that may change."""
        self._followers.add(follower)

    def wanted(self, since: int) -> set[Storage]:
        """Those that user code has an array of, or has looked at after that number of looks."""
        found = {storage for storage, look in self._looked.items() if look > since}
        found.update(storage for storage, copy in self._all_copies() if copy.held() is not None)
        return found.union(self.lent())

    def lent(self) -> list[Storage]:
        """Those of whose own memory user code has an array, which it may write at any moment."""
        if not self._windows:
            return []
        held = [(storage, window() is not None) for storage, window in self._windows.items()]
        for storage in [storage for storage, is_held in held if not is_held]:
            del self._windows[storage]
        return [storage for storage, is_held in held if is_held]

    @contextlib.contextmanager
    def changing(self, blobs: Iterable[Blob]) -> Iterator[None]:
        """Its body lets the engine change the data of these, and user code may work amid it."""
        before = self._changing
        self._changing = before | {blob._data for blob in blobs}
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
        return self._show(blob, blob._data)

    def diff(self, blob: Blob) -> np.ndarray:
        return self._show(blob, blob._diff)

    def device_address(self, blob: Blob, storage: Storage) -> int:
        """Where the values of the blob lie in the memory of a GPU, in C order. AttributeError if they do not."""
        raise AttributeError("the blob's values lie in host memory: only in GPU mode have they an address on a GPU")

    @contextlib.contextmanager
    def engine_at_work(self) -> Iterator[None]:
        """Its body works with the blobs: before it counts what user code has written, after it user code sees what has
        come of it."""
        self.push()
        try:
            yield
        finally:
            self.pull()

    @contextlib.contextmanager
    def user_at_work(self) -> Iterator[None]:
        """Its body, amid the work of the engine, calls user code."""
        self.pull()
        try:
            yield
        finally:
            self.push()

    def push(self) -> None:
        """Before the engine works: from now on what user code has written counts."""
        self._preserve(self._changing)
        for storage, copy in self._all_copies():
            if copy.values is not None:
                self._preserve((storage,))
                self._engine.copy(copy.array, storage.view(copy.shape))
                copy.values = None
            if copy.held() is None:
                del self._copies[storage]

    def pull(self) -> None:
        """After the engine has worked: the arrays that user code holds have the blobs' values again."""
        for storage, copy in self._all_copies():
            values, blob = copy.held(), copy.blob()
            if copy.values is None and values is not None and blob is not None and blob.uses(storage):
                copy.values, copy.shape = values, blob.shape
                self._engine.copy(storage.view(copy.shape), copy.array)
        for storage in self.lent():
            storage.settle()

    def reshape(self, blob: Blob, shape: tuple[int, ...]) -> None:
        """Give a blob another shape, in which its values keep their places in C order as far as they fit."""
        for follower in self._followers:
            if follower.runs(blob) and blob.shape != shape:
                follower.complete()
        with self.engine_at_work():
            keeps_order = blob.shape[1:] == shape[1:]
            before = [] if keeps_order else [blob.xp.ascontiguousarray(array) for array in (blob.data, blob.diff)]
            storage = blob._data
            blob.reshape(*shape)
            if blob._data is storage:  # else the memory is new, and zero
                for old, array in zip(before, (blob.data, blob.diff), strict=False):
                    values = blob.xp.zeros(blob.count, old.dtype)
                    values[: old.size] = old.reshape(-1)[: blob.count]
                    array[...] = values.reshape(shape)

    def same_weights(self, net: Any) -> AbstractContextManager[None]:
        """Its body is a forward pass of this net. What the engine makes of the weights is kept for the next pass, but
        for those that user code could write meanwhile."""
        return self._weights.same(net, lambda: {storage.address for storage in self.lent()})

    @contextlib.contextmanager
    def new_weights(self, net: Any) -> Iterator[None]:
        """Its body changes weights of this net, or where they lie."""
        with self._weights.change(), self.changing(blob for layer in net.layers for blob in layer.blobs):
            yield

    def _preserve(self, storages: Collection[Storage]) -> None:
        for follower in self._followers if storages else ():
            follower.preserve(storages)

    def _show(self, blob: Blob, storage: Storage) -> np.ndarray:
        self.looks += 1
        self._looked[storage] = self.looks
        copy = self._copies.get(storage)
        is_wide = storage.dtype != self._engine.half_dtype
        if copy is None and is_wide and storage.view(blob.shape).flags.c_contiguous:
            storage.make_contiguous(blob.shape)
            return self._window(storage)[: blob.count].reshape(blob.shape)
        values = None if copy is None else copy.held()
        if copy is None or values is None:
            values = np.empty(storage.size, storage.dtype if is_wide else np.float32)
            copy = self._copies[storage] = HostCopy(values)
            copy.values = None
        if copy.values is None or copy.shape != blob.shape:
            if copy.values is not None:  # lent to a blob of another shape with the same memory
                self._engine.copy(copy.array, storage.view(copy.shape))
            copy.values, copy.shape, copy.blob = values, blob.shape, weakref.ref(blob)
            self._engine.copy(storage.view(blob.shape), copy.array)
        return copy.array

    def _window(self, storage: Storage) -> np.ndarray:
        """The flat memory of a storage. The arrays that are made of it keep it, so that one knows whether user code has
        any; and it may write now."""
        self._weights.forget(storage.address)
        self._preserve((storage,))
        reference = self._windows.get(storage)
        window = None if reference is None else reference()
        if window is None or address(window) != storage.address:
            window = np.asarray(_Memory(storage.buffer))
            self._windows[storage] = weakref.ref(window)
        return window

    def _all_copies(self) -> list[tuple[Storage, HostCopy]]:
        return list(self._copies.items()) if self._copies else []


class HostCopy:
    """float32 memory in C order for the values of a storage, seen in the shape of one of its blobs at a time.

    It belongs to user code: `values` is set only while there may be something in it that the blob has not got yet.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.values: np.ndarray | None = values
        self.held = weakref.ref(values)
        self.shape: tuple[int, ...] = ()
        self.blob: Any = lambda: None

    @property
    def array(self) -> np.ndarray:
        assert self.values is not None
        return self.values[: math.prod(self.shape)].reshape(self.shape)


class HostCopies(HostViews):
    """Arrays for blobs on a device: copies, made when user code asks for them and written back by `push`.

    As in Caffe an array that was asked for before the last pass is out of date: ask for it anew to read or write.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._lent: list[tuple[Storage, DeviceCopy]] = []  # may have been written

    def prepare(self, blobs: Iterable[Blob]) -> None:
        pass

    def push(self) -> None:
        lent, self._lent = self._lent, []
        for storage, copy in lent:
            copy.lent = False
            storage.view(copy.shape)[...] = self._engine.from_numpy(copy.array)
        if any(storage.has_moved for storage, _ in lent):
            self._engine.refresh_parameters()

    def pull(self) -> None:
        pass

    def device_address(self, blob: Blob, storage: Storage) -> int:
        self.push()
        blob.make_contiguous()
        values = storage.view(blob.shape)
        if not values.flags.c_contiguous:
            raise NetError(f"a solver's parameter {blob.shape} is not in C order: take the address in a net of its own")
        return int(values.data.ptr)

    def _show(self, blob: Blob, storage: Storage) -> np.ndarray:
        shape = blob.shape
        if (copy := self._copies.get(storage)) is None:
            copy = self._copies[storage] = DeviceCopy(storage.size)
        if copy.lent and copy.shape != shape:  # another blob, of another shape, with the same memory
            self.push()
        if not copy.lent:
            copy.shape, copy.lent = shape, True
            copy.array[...] = self._engine.to_numpy(storage.view(shape))
            self._lent.append((storage, copy))
        return copy.array


class DeviceCopy:
    """float32 memory for the values of a storage on a device, seen in one shape at a time."""

    def __init__(self, size: int) -> None:
        self._flat: Any = np.empty(size, np.float32)
        self.shape: tuple[int, ...] = ()
        self.lent = False

    @property
    def array(self) -> np.ndarray:
        return self._flat[: math.prod(self.shape)].reshape(self.shape)


class _Memory:
    """An array that NumPy takes for foreign memory, so that views keep the array of it that they were made of."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


_views: dict[int, HostViews] = {}  # by the engine's id
