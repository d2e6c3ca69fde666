"""Batches of Datum records from a database."""

from __future__ import annotations

import numpy as np

from fcaffe import log
from fcaffe.data.database import Database
from fcaffe.data.datum import datum_to_array, name_of, parse_datum
from fcaffe.data.images import Color
from fcaffe.data.prefetch import Batch
from fcaffe.data.transformer import Transformer
from fcaffe.errors import DataError


class DatumBatches:
    """A BatchSource: the records of a database, `batch_size` at a time, transformed.

    `shape` is that of the first batch. As in Caffe each batch takes its shape from its first record, so that images
    of different sizes can be read with batch_size 1; within a batch all must come out alike.
    """

    def __init__(self, database: Database, transformer: Transformer, batch_size: int) -> None:
        self.database = database
        self.transformer = transformer
        self.batch_size = batch_size
        key, value = database.peek()
        datum = parse_datum(key, value)
        if transformer.color is not Color.AS_STORED and not datum.encoded:
            log.warning("force_color and force_gray change encoded records only; these are raw and stay as they are")
        self.shape = self._batch_shape(key, datum_to_array(datum, key, transformer.color))

    def fill(self, batch: Batch) -> None:
        images, labels = [], []
        records = self.database.read(self.batch_size)
        for key, value in records:
            datum = parse_datum(key, value)
            images.append(datum_to_array(datum, key, self.transformer.color))
            labels.append(datum.label)
        shape = self._batch_shape(records[0][0], images[0])
        first = images[0].shape
        for (key, _), image in zip(records, images, strict=True):
            if image.shape != first and self._batch_shape(key, image) != shape:
                raise DataError(
                    f"record {name_of(key)} has the shape {image.shape}, but its batch began with {first}: make all "
                    "records the same size, or set transform_param.crop_size (or batch_size: 1)"
                )
        batch.reshape(shape)
        self.transformer.transform(images, batch.data)
        batch.labels[...] = labels

    def state(self) -> tuple[int, bytes]:
        random = self.transformer.random
        return self.database.position, random.state() if random is not None else b""

    def set_state(self, position: int, random: bytes) -> None:
        self.database.seek(position)
        if random and self.transformer.random is not None:
            self.transformer.random.set_state(random)

    def close(self) -> None:
        self.database.close()

    def _batch_shape(self, key: bytes, image: np.ndarray) -> tuple[int, int, int, int]:
        try:
            return (self.batch_size, *self.transformer.output_shape(image.shape))
        except DataError as problem:
            raise DataError(f"{problem} (record {name_of(key)} of {self.database.source})") from problem
