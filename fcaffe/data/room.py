"""Checks that there is memory for the batches of a layer before any is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fcaffe.engines.memory import obtainable_bytes, readable_size
from fcaffe.errors import DataError

OVERHEAD = 1000  # approximate bytes of a batch besides its values


def check_batches(shapes: Sequence[Sequence[int]], batches: int = 1, reading: int = 0) -> None:
    """Raise DataError if this process cannot allocate the batches of a layer.

    Args:
        shapes: of the float32 arrays of one batch.
        batches: their number.
        reading: the bytes that one batch is decoded from.
    """
    available = obtainable_bytes(np)
    size = OVERHEAD + sum(4 * math.prod(shape) for shape in shapes)
    if available is None or size * batches + reading <= available:
        return
    what = " + ".join(" x ".join(map(str, shape)) for shape in shapes)
    raise DataError(
        f"{batches} batch(es) of {what} values take {readable_size(size * batches + reading)}, but this process can "
        f"have {readable_size(available)}: lower batch_size, the size of the images or data_param.prefetch"
    )
