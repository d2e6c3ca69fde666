"""Which engine a test runs on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from fcaffe.engines import Engine, cpu_engine, find_onednn

ENGINES = ["onednn", "numpy"] if find_onednn() else ["numpy"]

# The usual one if empty, one by its name, or what makes one; the fixture `on_each_engine` changes it.
chosen: str | Callable[[], Engine] = ""


def engine() -> Engine:
    return cpu_engine(name=chosen) if isinstance(chosen, str) else chosen()


_by_name = cache(lambda name: cpu_engine(name=name))


def shared_engine() -> Engine:
    """One engine of each name for all checks that need hundreds."""
    return _by_name(chosen) if isinstance(chosen, str) else chosen()


def host(array: Any) -> np.ndarray:
    """A copy of an engine's array in host memory."""
    return array.get() if hasattr(array, "get") else np.array(array)
