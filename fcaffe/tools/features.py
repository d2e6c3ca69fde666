"""Writes the values of blobs to databases, as Caffe's extract_features."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import numpy as np

from fcaffe import log
from fcaffe.data import array_to_datum
from fcaffe.data.backends import new_database
from fcaffe.data.database import Writer
from fcaffe.errors import DataError, UsageError
from fcaffe.net import Net

REPORT = 1000  # records between two lines of the log


def extract(net: Net, blobs: Sequence[str], paths: Sequence[str], backend: str, batches: Iterable[int]) -> None:
    """Run the net once for each of `batches`, and write the values of each blob to the database of the same index.

    A record has the values of one item (an index of the first axis) as float_data. Keys are ten digits. Raises
    UsageError, DataError.
    """
    if len(blobs) != len(paths):
        raise UsageError(f"{len(blobs)} blobs need as many databases, not {len(paths)}: separate each by commas")
    for name in blobs:
        if name not in net.blob_names:
            raise UsageError(f'the net has no blob "{name}"; it has {", ".join(dict.fromkeys(net.blob_names))}')
    with contextlib.ExitStack() as opened:
        writers = []
        for path in paths:
            log.opening_dataset(path)
            writers.append(opened.enter_context(new_database(path, backend)))
        log.extracting()
        for _ in batches:
            net.forward()
            for name, writer in zip(blobs, writers, strict=True):
                _put(name, net.context.engine.to_numpy(net.blob(name).data), writer)
        for name, writer in zip(blobs, writers, strict=True):
            log.blob_extracted(writer.count, name)
    log.all_extracted()


def _put(name: str, values: np.ndarray, writer: Writer) -> None:
    """Write each item as channels x height x width. Missing axes are 1."""
    if values.ndim > 4:
        raise DataError(f'blob "{name}" has {values.ndim} axes, and a record has three besides the batch: reshape it')
    for item in values if values.ndim else values[np.newaxis]:
        image = item.reshape(item.shape + (1,) * (3 - item.ndim)).astype(np.float32, copy=False)
        writer.put(b"%010d" % writer.count, array_to_datum(image).SerializeToString())
        if writer.count % REPORT == 0:
            log.extracted(writer.count, name)
