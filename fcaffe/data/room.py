"""Whether there is memory for the batches of a layer, found out before any of it is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fcaffe.engines.memory import obtainable_bytes
from fcaffe.errors import DataError

OVERHEAD = 1000  # bytes, about, of a batch without its values


def check_room(shapes: Sequence[Sequence[int]], batches: int = 1, reading: int = 0) -> None:
    """A DataError if this process cannot have so many batches, each of float32 arrays of these shapes, and `reading`
    bytes of what one of them is made from."""
    available = obtainable_bytes(np)
    size = OVERHEAD + sum(4 * math.prod(shape) for shape in shapes)
    if available is None or size * batches + reading <= available:
        return
    what = " + ".join(" x ".join(map(str, shape)) for shape in shapes)
    if size + reading > available:
        raise DataError(
            f"to read a batch of {what} values takes {_bytes(size + reading)}, but this process can have "
            f"{_bytes(available)}: "
            "lower batch_size, or the size of the images"
        )
    raise DataError(
        f"data_param.prefetch: {batches} batches of {_bytes(size)} take {_bytes(size * batches)}, but this process "
        f"can have {_bytes(available)}: lower it to {(available - reading) // size} or less (Caffe's default is 4)"
    )


def _bytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
