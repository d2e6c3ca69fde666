"""Reads and writes solver states: .solverstate, and .solverstate.h5 by `hdf5_states`; reads a state with its model."""

from __future__ import annotations

import functools
import os

import numpy as np

from fcaffe import log
from fcaffe.errors import SnapshotError
from fcaffe.model_files import Model, read_model
from fcaffe.model_files.model import check_text
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import write_binary
from fcaffe.proto.binary import HDF5_MAGIC, check_written, file_start, read_binary
from fcaffe.proto.blobs import LARGEST, TOO_LARGE, stored_blob
from fcaffe.solvers.snapshot.paths import HDF5_SUFFIX
from fcaffe.solvers.snapshot.state import State, carried_of, size_of


def read_state(path: str | os.PathLike[str]) -> State:
    """Read a state of either format, which the first bytes tell. Raises SnapshotError."""
    if file_start(path).startswith(HDF5_MAGIC):
        from fcaffe.solvers.snapshot import hdf5_states

        return hdf5_states.read(path)
    message = read_binary(path, pb.StateBytes)
    check_written(message, path)
    try:
        history = [stored_blob(blob) for blob in message.history]
        check_text(message)
        carried = [carried_of(array, np.frombuffer(array.data, np.uint8)) for array in message.resume.carried]
    except SnapshotError as problem:
        raise SnapshotError(f"{path}: {problem}") from None
    if not message.HasField("current_step"):
        log.warning(f"{path} has no current_step, as in files of early Caffe or truncated ones: 0 is assumed")
    resume = None
    if message.HasField("resume"):
        message.resume.ClearField("carried")
        resume = pb.ResumeState.FromString(message.resume.SerializeToString())
    return State(message.iter, message.current_step, message.learned_net, history, resume, carried)


def write_state(path: str | os.PathLike[str], state: State) -> None:
    """Write a state completely or not at all, in the format of the name's ending. Raises SnapshotError."""
    if os.fspath(path).endswith(HDF5_SUFFIX):
        from fcaffe.solvers.snapshot import hdf5_states

        hdf5_states.write(path, state)
        return
    size = size_of(state)
    if size > LARGEST:
        raise SnapshotError(f"cannot write {path}: with {size} bytes it {TOO_LARGE}")
    message = pb.SolverState(iter=state.iteration, learned_net=state.learned_net, current_step=state.current_step)
    if state.resume is not None:
        message.resume.CopyFrom(state.resume)
        message.resume.carried.extend(array.to_message(with_values=True) for array in state.carried)
    write_binary(path, message, state.history)


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


def read_model_of(state: State, path: str) -> tuple[Model, str]:
    """Read the model of a state. Returns it with its path: the one in the state, or in the state's folder."""
    checksum = state.resume.made_with.weights if state.resume is not None else 0  # 0 fits any model
    if "\0" in state.learned_net:
        raise SnapshotError(f"{path}: the name of its model, {state.learned_net!r:.80}, has a NUL; it is damaged")
    beside = os.path.join(os.path.dirname(path), os.path.basename(state.learned_net))
    found = [candidate for candidate in dict.fromkeys((state.learned_net, beside)) if os.path.exists(candidate)]
    for candidate in found or [state.learned_net]:
        try:
            model = read_model(candidate)
        except SnapshotError as problem:
            raise SnapshotError(f"{path}: its model (learned_net): {problem}") from problem
        if checksum in (0, model.checksum()):
            return model, candidate
    raise SnapshotError(
        f"{' and '.join(found)}: not the model that was written with {path}, since it has other values; restore that "
        f"model, or train from this one by --weights {found[0]}"
    )
