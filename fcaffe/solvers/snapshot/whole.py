"""A state and its model, which are read together: whole, or refused."""

from __future__ import annotations

import functools
import os

from fcaffe.errors import SnapshotError
from fcaffe.model_files import BlobSizes, Model, read_model
from fcaffe.solvers.snapshot.state_files import State, read_state


def check_whole(path: str) -> None:
    """Raise SnapshotError if a state or its model is damaged, or if they do not belong together."""
    try:
        stat = os.stat(path)
    except OSError as problem:
        raise SnapshotError(f"{path}: cannot read it ({problem.strerror})") from problem
    _check(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=10_000)
def _check(path: str, changed: int, size: int) -> None:
    """Files that are whole are read once."""
    read_model_of(read_checked(path), path)


def read_checked(path: str) -> State:
    """Read a state without its model. Raises SnapshotError."""
    state = read_state(path)
    if min(state.iteration, state.current_step) < 0 or not state.learned_net:
        raise SnapshotError(f"{path} has no iteration, or does not name its model; it is damaged, take an earlier one")
    return state


def read_model_of(state: State, path: str, wanted: BlobSizes | None = None) -> tuple[Model, str]:
    """Read the model of a state. Returns it with its path: the one in the state, or in the state's folder.

    Blobs that do not fit the sizes `wanted` are not read.
    """
    checksum = state.resume.made_with.weights if state.resume is not None else 0  # 0 fits any model
    if "\0" in state.learned_net:
        raise SnapshotError(f"{path}: the name of its model, {state.learned_net!r:.80}, has a NUL; it is damaged")
    beside = os.path.join(os.path.dirname(path), os.path.basename(state.learned_net))
    found = [candidate for candidate in dict.fromkeys((state.learned_net, beside)) if os.path.exists(candidate)]
    for candidate in found or [state.learned_net]:
        try:
            model = read_model(candidate, wanted)
        except SnapshotError as problem:
            raise SnapshotError(f"{path}: its model (learned_net): {problem}") from problem
        if checksum in (0, model.checksum()):
            return model, candidate
    raise SnapshotError(
        f"{' and '.join(found)}: not the model that was written with {path}, since it has other values; restore that "
        f"model, or train from this one by --weights {found[0]}"
    )
