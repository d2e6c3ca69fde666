"""Running statistics of BatchNorm that differ between workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from fcaffe.solvers.run import Run


@contextlib.contextmanager
def mean_statistics(run: Run) -> Iterator[None]:
    """Replace the statistics by their mean over the workers, for a test or a snapshot in the body. Collective."""
    blobs = [blob for layer in run.net.layers for blob in layer.running_statistics]
    if run.workers.size == 1 or run.context.sync_batch_norm or not blobs:
        yield
        return
    own = [blob.data.copy() for blob in blobs]
    try:
        for blob in blobs:
            blob.data[...] = run.workers.sum_array(blob.data) / np.float32(run.workers.size)
        yield
    finally:
        for blob, values in zip(blobs, own, strict=True):
            blob.data[...] = values
