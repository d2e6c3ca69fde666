"""Computes the mean image of records, as Caffe's compute_image_mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fcaffe import log
from fcaffe.data.database import Record
from fcaffe.data.datum import datum_to_array, parse_datum
from fcaffe.data.mean import mean_image

REPORT = 10000  # records between two log lines


def mean_of_records(records: Iterable[Record]) -> np.ndarray:
    """The pixelwise mean of the records' images, float32, channels x height x width."""
    return mean_image(_images(records))


def channel_means(mean: np.ndarray) -> list[float]:
    """The mean value of each channel."""
    return [float(channel.mean(dtype=np.float64)) for channel in mean]


def _images(records: Iterable[Record]) -> Iterator[np.ndarray]:
    count = 0
    for key, value in records:
        datum = parse_datum(key, value)
        if count == 0:
            if datum.encoded:
                log.decoding_datum()
            log.starting_iteration()
        yield datum_to_array(datum, key)
        count += 1
        if count % REPORT == 0:
            log.added_up(count)
    if count % REPORT:
        log.all_added_up(count)
