"""Reads .npy and .npz files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import UnreadableError, asking, reading, require_file


def load_numpy(path: str, what: str) -> Any:
    """The array of a .npy, or the arrays of a .npz by name. Raises SnapshotError; `what` is the purpose of the file."""
    with reading(path, SnapshotError, what):
        os.stat(path)
        require_file(path)
    try:
        with asking():
            content: Any = np.load(path, mmap_mode="r", allow_pickle=False)  # which checks the size of the file
            return {name: content[name] for name in content} if hasattr(content, "files") else np.array(content)
    except UnreadableError as problem:
        raise SnapshotError(f"cannot read {path} as {what}: {problem}") from problem
