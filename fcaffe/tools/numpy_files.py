"""Reads .npy and .npz files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import UnreadableError, asking, reading, require_file


def load_numpy(path: str, what: str, several: bool = False) -> Any:
    """The array of numbers of a .npy, or, if `several` may be given, the arrays of a .npz by name.

    Raises SnapshotError. `what` is the purpose of the file.
    """
    with reading(path, SnapshotError, what):
        os.stat(path)
        require_file(path)
    try:
        with asking():
            content: Any = np.load(path, mmap_mode="r", allow_pickle=False)  # which checks the size of the file
            found = {name: content[name] for name in content} if hasattr(content, "files") else np.array(content)
    except UnreadableError as problem:
        raise SnapshotError(f"cannot read {path} as {what}: {problem}") from problem
    if isinstance(found, dict) and not several:
        raise SnapshotError(f"{path} has several arrays; give {what} as a .npy, which has one")
    for array in found.values() if isinstance(found, dict) else (found,):
        if array.dtype.kind not in "biuf":
            raise SnapshotError(f"{path} holds values of the type {array.dtype}; give a file of numbers")
    return found
