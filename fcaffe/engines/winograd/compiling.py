"""Compilation by Numba, with compiled code cached on disk and a line of log when there is none.

Numba's cache does not notice that a function in another file has changed. So the cache's folder is named after the
contents of all files of this package.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import event

from fcaffe import log

SETTINGS: Any = numba.config

# Reassociation lets Numba use vectors; NaN and infinity keep their meaning.
ARITHMETIC = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile the function when it is first called. It runs without Python's lock."""
    folder, before = _cache_folder(), SETTINGS.CACHE_DIR
    try:
        SETTINGS.CACHE_DIR = folder
        return numba.njit(fastmath=ARITHMETIC, nogil=True, cache=bool(folder), **options)(function)
    finally:
        SETTINGS.CACHE_DIR = before


parallel = functools.partial(compiled, parallel=True)
inlined = numba.njit(inline="always", fastmath=ARITHMETIC)


@functools.cache
def _cache_folder() -> str:
    """A folder for the code compiled from these files, within NUMBA_CACHE_DIR or the user's cache folder.

    Empty if that cannot be written. Each process then compiles for itself.
    """
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    parent = SETTINGS.CACHE_DIR or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "fcaffe")
    folder = os.path.join(os.path.expanduser(parent), f"winograd-{digest.hexdigest()[:16]}")
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return ""
    return folder


class _Announcement(event.Listener):  # type: ignore[misc, unused-ignore]
    """Logs the first compilation of this process."""

    said = False

    def on_start(self, event: Any) -> None:
        if not self.said and event.data["dispatcher"].py_func.__module__.startswith(__package__):
            self.said = True
            kept = "once on this machine" if _cache_folder() else "in each run, since no cache folder can be written"
            log.info(f"Numba compiles the convolutions of --math winograd: some 20 seconds, {kept}")

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Announcement())
