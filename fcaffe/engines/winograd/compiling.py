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


@functools.cache
def announce() -> None:
    """Log, once in a process, that compiled code is called for which there is no cache yet."""
    folder = _cache_folder()
    if not (folder and any(Path(folder).rglob("*.nbi"))):
        kept = "once on this machine" if folder else "in each run, since no cache folder can be written"
        log.info(f"Numba compiles the convolutions of --math winograd: some 20 seconds, {kept}")
