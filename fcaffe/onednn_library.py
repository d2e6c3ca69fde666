"""Finds oneDNN's library without loading NumPy, for the engines and for `--version`."""

from __future__ import annotations

import contextlib
import os
import sys


def find_onednn() -> str | None:
    """Where libdnnl is: beside this Python or in the wheel onednn-cpu-gomp; else None."""
    beside = os.path.join(sys.prefix, "lib", "libdnnl.so.3")
    if os.path.exists(beside):
        return beside
    import importlib.metadata  # which takes a while to load

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("onednn-cpu-gomp") or []:
            if file.name == "libdnnl.so.3" and os.path.exists(path := str(file.locate())):
                return path
    return None
