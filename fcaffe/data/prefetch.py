"""Prefetching: a thread fills the next batches while the net processes one; and the memory for them."""

from __future__ import annotations

import math
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from fcaffe import log
from fcaffe.engines.base import Pending
from fcaffe.engines.memory import obtainable_bytes, readable_size
from fcaffe.errors import DataError
from fcaffe.share import Share, Turns

END_TIMEOUT = 5.0  # seconds
LOG_INTERVAL = 1000  # Caffe logs the 1st, 1001st, ... wait
COPIED = 2  # batches whose copies may be in progress when the next one is taken

Allocate = Callable[[tuple[int, ...]], np.ndarray]  # float32 of this shape, uninitialised


def empty(shape: tuple[int, ...]) -> np.ndarray:
    return np.empty(shape, np.float32)


class Batch:
    """Images and labels of one batch, with the state of the reader after it.

    `data` is N x C x H x W float32 with channels-last strides, `labels` N x `label_shape`. Both are in memory from
    `allocate`. `objects` are the annotations of the N images, if the source has any. `state` is `BatchSource.state`
    after this batch.
    """

    def __init__(self, allocate: Allocate = empty) -> None:
        self._allocate = allocate
        self.data = np.empty((0, 0, 0, 0), np.float32)
        self.labels = np.empty(0, np.float32)
        self.objects: list[np.ndarray] = []
        self.state: tuple[int, bytes] = (0, b"")

    def reshape(self, shape: tuple[int, int, int, int], label_shape: tuple[int, ...] = ()) -> None:
        if self.data.shape != shape:
            number, channels, height, width = shape
            self.data = self._allocate((number, height, width, channels)).transpose(0, 3, 1, 2)
            self.labels = self._allocate((number, *label_shape))
            self.labels[...] = 0


class BatchSource(Protocol):
    """The interface that a Prefetcher's thread calls, one thread at a time.

    `shape` is that of the first batch's images, and `label_shape` that of an image's labels, () if it has one.
    """

    shape: tuple[int, int, int, int]
    label_shape: tuple[int, ...]
    batch_size: int

    def fill(self, batch: Batch) -> None:
        """Read the next batch into `batch`, reshaping it as needed."""

    def state(self) -> tuple[int, bytes]:
        """The number of records read, and the state of the random generator (empty if there is none)."""

    def set_state(self, position: int, random: bytes) -> None:
        """Continue from a `state`."""

    def divide(self, share: Share, turns: Turns) -> None:
        """Read only this share of each batch, and only the batches of these turns. Called before the first `fill`."""

    def close(self) -> None:
        """Close the files."""


class Prefetcher:
    """Reads up to `depth` batches of a source ahead, into memory from `allocate`.

    `take` gives a batch, and `give_back` returns it after it was copied. The first `take` starts the thread. `take`
    raises the errors of the thread, which has no reference to the Prefetcher: it ends when that is deleted, or when the
    interpreter ends.
    """

    def __init__(self, source: BatchSource, depth: int, allocate: Allocate = empty) -> None:
        self.source = source
        self.depth = depth
        self.allocate = allocate
        self.waits = 0
        self.waited = 0.0  # seconds, all waits together
        self._error: BaseException | None = None
        self._end: weakref.finalize | None = None
        self._copied: deque[tuple[Batch, Sequence[Pending]]] = deque()  # returned batches that may still be copied

    def take(self) -> Batch:
        """The next batch in order. Waits for the reader if necessary."""
        if self._error is not None:
            raise self._error
        if self._end is None:
            self._start()
        self._reclaim(min(COPIED, self.depth - 1))
        item = self._next()
        if isinstance(item, BaseException):
            self.stop()
            self._error = item
            raise item
        return item

    def give_back(self, batch: Batch, copies: Sequence[Pending] = ()) -> None:
        """Return a batch to the reader, which overwrites it after these copies are complete."""
        self._copied.append((batch, copies))
        self._reclaim(self.depth)

    def stop(self) -> None:
        """End the thread and drop the batches read ahead. The next `take` starts another thread."""
        if self._end is not None:
            self._reclaim(0)
            self._end()
            self._thread.join()
            self._end = None
        self._error = None

    def _start(self) -> None:
        self._free: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()
        for _ in range(self.depth):
            self._free.put(Batch(self.allocate))
        stopping = threading.Event()
        arguments = self.source, self._free, self._full, stopping
        self._thread = threading.Thread(target=_read_ahead, args=arguments, name="prefetch", daemon=True)
        self._thread.start()
        self._taken = 0
        self._end = weakref.finalize(self, _end, self._thread, self._free, stopping)

    def _reclaim(self, most: int) -> None:
        """Return batches with complete copies to the reader. Wait for the oldest until at most `most` are left."""
        while self._copied:
            batch, copies = self._copied[0]
            if len(self._copied) <= most and not all(copy.done for copy in copies):
                return
            for copy in copies:
                copy.wait()
            self._copied.popleft()
            self._free.put(batch)

    def _next(self) -> Batch | BaseException:
        self._taken += 1
        try:
            return self._full.get_nowait()
        except queue.Empty:
            if self._taken > self.depth:  # the first ones are not read ahead
                if self.waits % LOG_INTERVAL == 0:
                    log.waiting_for_data()
                self.waits += 1
            begin = time.monotonic()
            item = self._full.get()
            self.waited += time.monotonic() - begin
            return item


def _read_ahead(
    source: BatchSource,
    free: queue.SimpleQueue[Batch | None],
    full: queue.SimpleQueue[Batch | BaseException],
    stopping: threading.Event,
) -> None:
    try:
        while (batch := free.get()) is not None and not stopping.is_set():
            source.fill(batch)
            batch.state = source.state()
            full.put(batch)
    except BaseException as error:  # for the waiting thread
        full.put(error)


def _end(thread: threading.Thread, free: queue.SimpleQueue[Batch | None], stopping: threading.Event) -> None:
    stopping.set()
    free.put(None)
    # The interpreter must not end in the middle of a log line; but this may run in any thread, holding any lock.
    if thread is not threading.current_thread():
        thread.join(timeout=END_TIMEOUT)


OVERHEAD = 1000  # approximate bytes of a batch besides its values


def check_batches(shapes: Sequence[Sequence[int]], batches: int = 1) -> None:
    """Raise DataError if this process cannot allocate the batches of a layer.

    Args:
        shapes: of the float32 arrays of one batch.
        batches: their number.
    """
    available = obtainable_bytes(np)
    size = OVERHEAD + sum(4 * math.prod(shape) for shape in shapes)
    if available is None or size * batches <= available:
        return
    what = " + ".join(" x ".join(map(str, shape)) for shape in shapes)
    raise DataError(
        f"{batches} batch(es) of {what} values take {readable_size(size * batches)}, but this process can "
        f"have {readable_size(available)}: lower batch_size, the size of the images or data_param.prefetch"
    )
