"""Batches of images from records or files, which several threads decode and transform."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import numpy as np

from fcaffe import log
from fcaffe.data.database import Database, Record
from fcaffe.data.datum import datum_to_array, labels_of, name_of, parse_datum
from fcaffe.data.images import Color
from fcaffe.data.prefetch import Batch
from fcaffe.data.transformer import Decision, Transformer
from fcaffe.errors import DataError
from fcaffe.share import Share, Turns
from fcaffe.threads import available_cpus

UNDECIDED = Decision(0, 0, 0, 0)  # for the shape of the first image
Item = TypeVar("Item")  # an image before it is decoded


class ImageBatches(ABC, Generic[Item]):
    """A BatchSource of transformed images and labels.

    `shape` is that of the first batch. As in Caffe each batch has the shape of its first image, so that images of
    different sizes can be read with batch_size 1. Items are read, and random decisions drawn, in order. Then several
    threads decode and transform the images.
    """

    shape: tuple[int, int, int, int]
    label_shape: tuple[int, ...] = ()

    def __init__(self, transformer: Transformer, batch_size: int) -> None:
        self.transformer = transformer
        self.batch_size = batch_size
        self.share = Share(0, batch_size, batch_size)
        self.turns = Turns()
        self.decoders = Decoders()

    @abstractmethod
    def take(self, count: int) -> list[Item]:
        """The next `count` items in order."""

    def skip(self, count: int) -> None:
        """Skip the next `count` items."""
        self.take(count)

    @abstractmethod
    def load(self, item: Item) -> tuple[np.ndarray, Any]:
        """The image (channels x height x width) and its label. Called by several threads."""

    def prepare(self, item: Item, decision: Decision) -> tuple[np.ndarray, Any]:
        """The image before crop, mirror, mean and scale, and its label. Called by several threads."""
        image, label = self.load(item)
        return self.transformer.augment(image, decision), label

    def set_label(self, batch: Batch, index: int, label: Any) -> None:
        """Write the label of an image into a batch."""
        batch.labels[index] = label

    @abstractmethod
    def name(self, item: Item) -> str:
        """A description of the item, for errors."""

    def divide(self, share: Share, turns: Turns) -> None:
        self.share, self.turns = share, turns
        self.shape = (share.count, *self.shape[1:])

    def fill(self, batch: Batch) -> None:
        share, number = self.share, self.position // self.share.total
        self._skip_batches(self.turns.skipped_before(number))
        number = self.position // share.total
        self.skip(share.first)
        items = self.take(share.count)
        self.skip(share.total - share.first - share.count)
        decisions = self.transformer.decide(share.total)[share.first : share.first + share.count]
        self._transform(items, decisions, batch)
        self._skip_batches(self.turns.skipped_after(number))

    @property
    @abstractmethod
    def position(self) -> int:
        """The number of items read or skipped."""

    def _skip_batches(self, number: int) -> None:
        """Skip whole batches, with the random decisions for them."""
        for _ in range(number):
            self.skip(self.share.total)
            self.transformer.decide(self.share.total)

    def _transform(self, items: list[Item], decisions: list[Decision], batch: Batch) -> None:
        first, first_label = self.prepare(items[0], decisions[0])
        shape = self.batch_shape(items[0], first)
        batch.reshape(shape, self.label_shape)

        def load_and_transform(index: int) -> None:
            item = items[index]
            image, label = self.prepare(item, decisions[index]) if index else (first, first_label)
            self.set_label(batch, index, label)
            if image.shape != first.shape and self.batch_shape(item, image) != shape:
                raise DataError(
                    f"{self.name(item)} has the shape {image.shape}, but its batch began with {first.shape}: make all "
                    "images the same size, or set transform_param.crop_size or resize_param (or batch_size: 1)"
                )
            self.transformer.apply(image, decisions[index], batch.data[index])

        self.decoders.each(load_and_transform, len(items))

    def batch_shape(self, item: Item, image: np.ndarray) -> tuple[int, int, int, int]:
        """The shape of a batch whose first image this is."""
        try:
            return (self.share.count, *self.transformer.output_shape(image.shape))
        except DataError as problem:
            raise DataError(f"{problem} ({self.name(item)})") from problem

    def close(self) -> None:
        self.decoders.close()


class DatumBatches(ImageBatches[Record]):
    """The Datum records of a database, `batch_size` at a time. All have as many labels as the first one."""

    labels: int | None = None

    def __init__(self, database: Database, transformer: Transformer, batch_size: int) -> None:
        super().__init__(transformer, batch_size)
        self.database = database
        record = database.peek()
        image, label = self.prepare(record, UNDECIDED)
        self.shape = self.batch_shape(record, image)
        self.label_shape = label.shape if isinstance(label, np.ndarray) else ()
        self.labels = math.prod(self.label_shape)
        if transformer.color is not Color.AS_STORED and not parse_datum(*record).encoded:
            log.warning("force_color and force_gray change encoded records only; these are raw and stay as they are")

    @property
    def position(self) -> int:
        return self.database.position

    def take(self, count: int) -> list[Record]:
        return self.database.read(count)

    def skip(self, count: int) -> None:
        self.database.skip(count)

    def load(self, item: Record) -> tuple[np.ndarray, Any]:
        try:
            datum = parse_datum(*item)
            image, labels = datum_to_array(datum, item[0], self.transformer.color), labels_of(datum)
            if self.labels not in (None, len(labels)):
                raise DataError(f"record {name_of(item[0])} has {len(labels)} labels, and the first one {self.labels}")
            return image, labels if len(labels) > 1 else labels[0]
        except DataError as problem:
            raise DataError(f'{problem} (in the {self.database.kind} "{self.database.source}")') from problem

    def name(self, item: Record) -> str:
        return f"record {name_of(item[0])} of {self.database.source}"

    def state(self) -> tuple[int, bytes]:
        random = self.transformer.random
        return self.database.position, random.state() if random is not None else b""

    def set_state(self, position: int, random: bytes) -> None:
        self.database.seek(position)
        if random and self.transformer.random is not None:
            self.transformer.random.set_state(random)

    def close(self) -> None:
        super().close()
        self.database.close()


MOST_THREADS = 16  # more threads wait for the interpreter's lock
SHARES = 4  # parts of a batch per thread, which balance slow pictures


def decoding_threads() -> int:
    """The number of threads: one per CPU of this process, up to MOST_THREADS."""
    return min(available_cpus(), MOST_THREADS)


class Decoders:
    """A thread pool. OpenCV and NumPy release the interpreter's lock while they process pixels."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or decoding_threads()
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="decode")

    def each(self, work: Callable[[int], None], count: int) -> None:
        """Call work(0) to work(count - 1) in any order. Raises the error of the lowest index that fails."""
        share = -(-count // (self.threads * SHARES)) or 1

        def work_on_part(start: int) -> None:
            for index in range(start, min(start + share, count)):
                work(index)

        for _ in self._pool.map(work_on_part, range(0, count, share)):
            pass

    def close(self) -> None:
        self._pool.shutdown()
