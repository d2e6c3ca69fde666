"""Where arrays live and what computes on them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys

from fcaffe.engines.engine import Engine, NumpyEngine
from fcaffe.errors import UsageError

__all__ = ["MISSING", "Engine", "NumpyEngine", "cpu_engine", "find_onednn"]

MISSING = "oneDNN is not here (pip install onednn-cpu-gomp, for Linux on x86-64)"


def cpu_engine(math: str = "fp32", name: str = "") -> Engine:
    """The engine for CPUs: oneDNN where its library is, else NumPy; or the one of this name. Raises UsageError.

    `math` as for OneDnnEngine.
    """
    path = find_onednn() if name != "numpy" else None
    if path:
        from fcaffe.engines.onednn.engine import OneDnnEngine

        return OneDnnEngine(path, math)
    if name == "onednn":
        raise UsageError(f"{MISSING}; the NumPy engine does without")
    if math != "fp32":
        raise UsageError(f"--math {math} needs the oneDNN engine" + ("" if name else f", and {MISSING}"))
    return NumpyEngine()


def find_onednn() -> str | None:
    """Where libdnnl is: beside this Python or in the wheel onednn-cpu-gomp; else None."""
    candidates = [os.path.join(sys.prefix, "lib", "libdnnl.so.3")]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.files("onednn-cpu-gomp") or []
        candidates += [str(file.locate()) for file in files if file.name == "libdnnl.so.3"]
    return next((path for path in candidates if os.path.exists(path)), None)
