"""Data, ImageData, WindowData: batches of images and labels from a database or from files, read ahead by a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data.backends import open_database
from fcaffe.data.batches import DatumBatches
from fcaffe.data.database import Database
from fcaffe.data.image_list import ListBatches
from fcaffe.data.prefetch import Batch, BatchSource, Prefetcher, check_batches
from fcaffe.data.transformer import Transformer
from fcaffe.data.windows import WindowBatches
from fcaffe.engines.base import Pending
from fcaffe.errors import DataError
from fcaffe.net import Blob, Context, Layer, Traits, register
from fcaffe.net.layer import Held, State
from fcaffe.rng import CaffeRandom
from fcaffe.threads import renew_in_forks
from fcaffe.timeline import DATA

OF_PARENTS: list[Prefetcher | None] = []  # what forked processes have inherited and do not use


@contextmanager
def reading_errors(layer: Layer) -> Iterator[None]:
    """Put the layer's name in front of errors from reading."""
    try:
        yield
    except DataError as problem:
        raise DataError(f'layer "{layer.name}" ({layer.type}): {problem}') from problem


def state_of(position: int, random: bytes) -> State:
    """The state of a reader: records read since the first, and the state of a generator."""
    return {"position": np.array(position, np.int64), "random": np.frombuffer(random, np.uint8)}


class Reader(Layer):
    """Base of the layers that read records one after the other, at the same position on all workers.

    A pass may be over some samples of a batch only. Passes over the others may run on other threads, in any order.
    """

    traits = Traits(held=Held.ALIKE)

    def __init__(self, param: Any, context: Context) -> None:
        super().__init__(param, context)
        self._handing_out = threading.Lock()
        renew_in_forks(self)
        self._left = 0  # samples of the present batch that no pass has had

    def after_fork(self) -> None:
        self._handing_out = threading.Lock()

    def find_share(self, batch_size: int, top: list[Blob]) -> None:
        """Set the `share` of each batch that this worker reads, and the placement of the tops."""
        self.share, placement = self.context.share_of(batch_size)
        for blob in top:
            blob.placement = placement

    @contextmanager
    def samples(self) -> Iterator[slice]:
        """Yields the samples of the present pass. Reads the next batch if all of this one have been handed out."""
        rows = self.workers.rows(self.share)
        with self._handing_out:
            if not self._left:
                self.read_batch()
                self._left = self.share.count * (1 if self.is_split else self.context.workers.passes)
        try:
            yield rows
        finally:
            with self._handing_out:
                self._left -= rows.stop - rows.start
                if not self._left:
                    self.end_batch()

    def read_batch(self) -> None:
        """Read this worker's share of the next batch."""
        raise NotImplementedError

    def end_batch(self) -> None:
        """All samples of the batch have been handed out."""


class ReadingLayer(Reader):
    """Base of the layers whose tops (data, label) come from a BatchSource through a reading thread.

    A subclass names its own field of the prototxt, and the source of its batches, or overrides `open_source`. The state
    is that after the last batch that the net has had, whatever the thread has read since.
    """

    traits = replace(Reader.traits, bottoms=0, tops=(1, 2), reads_host=True)
    field: str  # the message with batch_size
    source: Callable[[Any, Transformer, CaffeRandom], BatchSource]  # makes the reader of batches from this message
    size_logged_at = "data_layer.cpp:45"  # where Caffe logs the size of the output
    _prefetcher: Prefetcher | None = None

    def transformer(self) -> Transformer:
        return Transformer(self.param.transform_param, self.phase)

    def open_source(self, transformer: Transformer) -> BatchSource:
        """The reader of batches, which draws from `self.context.random`."""
        return type(self).source(getattr(self.param, self.field), transformer, self.context.random)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        depth = self.param.data_param.prefetch
        if depth < 1:
            raise self.error("data_param.prefetch must be positive")
        if getattr(self.param, self.field).batch_size < 1:
            raise self.error(f"{self.field}.batch_size must be positive")
        self._prefetcher = self._open(top)
        source = self._prefetcher.source
        self._state = source.state()
        rows = self.workers.rows(self.share)
        images = rows.stop - rows.start
        self._reshape(top, (images, *source.shape[1:]), self.label_shape(images))
        log.output_data_size(",".join(map(str, source.shape)), self.size_logged_at)

    def _open(self, top: list[Blob]) -> Prefetcher:
        random, depth = self.context.random, self.param.data_param.prefetch
        with reading_errors(self):
            transformer = self.transformer()
            transformer.seed(random)  # Caffe seeds it twice, before and after opening the source; the second counts
            source = self.open_source(transformer)
            transformer.seed(random)
            self.find_share(source.batch_size, top)
            source.divide(self.share, self.context.turns)
            check_batches([source.shape, (source.shape[0], *source.label_shape)], depth)
        random.draw()  # in Caffe the seed of the reading thread, which has no use for it
        return Prefetcher(source, depth, self.engine.host_array)

    @property
    def prefetcher(self) -> Prefetcher:
        """In a forked process it is opened when it is first needed, and begins where the net has got to."""
        if self._prefetcher is None:
            random = self.context.random.state()
            with log.quiet():
                self._prefetcher = self._open([])
            self.context.random.set_state(random)
            self.restore_state(self.state())
        return self._prefetcher

    def after_fork(self) -> None:
        """The thread and its open files remain the parent's. They are neither used nor closed here."""
        super().after_fork()
        OF_PARENTS.append(self._prefetcher)
        self._prefetcher = None

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        with self.samples() as rows:
            data, labels = self._batch.data[rows], self.labels(self._batch, rows)
            self._reshape(top, data.shape, labels.shape)
            for blob, values in zip(top, (data, labels), strict=False):
                self._copies.append(self.engine.upload(values, blob.data))

    def read_batch(self) -> None:
        with reading_errors(self), self.context.timeline.span(DATA):
            self._batch = self.prefetcher.take()
        self._copies: list[Pending] = []

    def end_batch(self) -> None:
        self._state = self._batch.state
        self.prefetcher.give_back(self._batch, self._copies)

    def label_shape(self, images: int) -> tuple[int, ...]:
        return (images, *self.prefetcher.source.label_shape)

    def labels(self, batch: Batch, rows: slice) -> np.ndarray:
        """The values of the top label for these images of a batch."""
        return batch.labels[rows]

    def state(self) -> State:
        return state_of(*self._state)

    def restore_state(self, state: State) -> None:
        """Batches read ahead are dropped."""
        position, random = int(state["position"]), state["random"].tobytes()
        self.prefetcher.stop()
        with reading_errors(self):
            self.prefetcher.source.set_state(position, random)
        self._state = self.prefetcher.source.state()

    def close(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.stop()
            self._prefetcher.source.close()

    def _reshape(self, top: list[Blob], shape: tuple[int, ...], labels: tuple[int, ...]) -> None:
        top[0].reshape(*shape)
        if len(top) > 1:
            top[1].reshape(*labels)


@register("Data")
class Data(ReadingLayer):
    """Reads the Datum records of an LMDB or LevelDB: top data (batch_size, C, H, W), optionally label (batch_size).

    Records with several labels in float_data beside data give label (batch_size, labels).
    """

    field = "data_param"

    def open_source(self, transformer: Transformer) -> BatchSource:
        p = self.param.data_param
        if p.rand_skip:
            log.warning(f"layer {self.name}: data_param.rand_skip is ignored, as in Caffe 1.0")
        database = open_database(p.source, p.backend)
        own, first = database.version(), self.context.as_worker_0(database.version())
        if own != first:
            raise DataError(
                f'the {database.kind} "{p.source}" has {own} records here, but {first} where worker 0 reads it: wait '
                "until no process writes to it, or copy it again"
            )
        return self.batches(database, transformer, p.batch_size)

    def batches(self, database: Database, transformer: Transformer, batch_size: int) -> DatumBatches:
        """The batches of the database's records."""
        return DatumBatches(database, transformer, batch_size)


@register("ImageData")
class ImageData(ReadingLayer):
    """Reads pictures (JPEG, PNG, ...) by OpenCV: top data (batch_size, 3 or 1, H, W), optionally label (batch_size).

    With `label_size`, a field of forks, each line has so many labels, and label is (batch_size, label_size).
    """

    size_logged_at = "image_data_layer.cpp:90"
    field = "image_data_param"
    source = ListBatches


@register("WindowData")
class WindowData(ReadingLayer):
    """Tops data (batch_size, 3, crop_size, crop_size) and label (batch_size), in which 0 is the background."""

    traits = replace(ReadingLayer.traits, tops=2)
    size_logged_at = "window_data_layer.cpp:180"
    field = "window_data_param"
    source = WindowBatches

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        transform = self.param.transform_param
        if transform.mean_file:
            log.loading_window_mean(transform.mean_file)  # Caffe reads it a second time
        if transform.scale != 1:
            log.warning(f"layer {self.name}: transform_param.scale is ignored, as in Caffe")
