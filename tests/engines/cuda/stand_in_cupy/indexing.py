"""What stands between the brackets of an array."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np

from tests.engines.cuda.stand_in_cupy import streams


def places(key: Any) -> tuple[tuple[Any, ...], str]:
    """The index with NumPy's arrays in place of the device's, and whether it is a view, a copy or goes by a mask."""
    how, place = "view", []
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, (list, np.ndarray, bool, np.bool_)):
            streams.upload("index")
            part = np.asarray(part)
        elif hasattr(part, "_values"):
            part = part._values
        elif not isinstance(part, (slice, EllipsisType, int, np.integer, type(None))):
            raise IndexError(
                "only integers, slices (`:`), ellipsis (`...`),numpy.newaxis (`None`) and integer or boolean arrays "
                "are valid indices"
            )
        if isinstance(part, np.ndarray):
            if part.dtype.kind not in "biu":
                raise IndexError(f"arrays used as indices must be of integer or boolean type. (actual: {part.dtype})")
            how = "mask" if part.dtype.kind == "b" or how == "mask" else "copy"
        place.append(part)
    if not any(part is Ellipsis for part in place):
        place.append(Ellipsis)  # so that NumPy gives an array, no scalar
    return tuple(place), how


def wrapped(place: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Index arrays brought into range."""
    axis, found = 0, []
    taken = sum(part.ndim if _is_mask(part) else part is not None and part is not Ellipsis for part in place)
    for part in place:
        if isinstance(part, np.ndarray) and not _is_mask(part):
            found.append(part % shape[axis] if shape[axis] else part)
        else:
            found.append(part)
        if part is Ellipsis:
            axis += len(shape) - taken
        elif part is not None:
            axis += part.ndim if _is_mask(part) else 1
    return tuple(found)


def _is_mask(part: Any) -> bool:
    return isinstance(part, np.ndarray) and part.dtype.kind == "b"
