"""Reads and writes solver states: .solverstate, and .solverstate.h5 by `hdf5_states`."""

from __future__ import annotations

import os

import numpy as np

from fcaffe import log
from fcaffe.errors import SnapshotError
from fcaffe.model_files.model import check_text
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import write_binary
from fcaffe.proto.binary import HDF5_MAGIC, check_written, file_start, read_outline
from fcaffe.proto.blobs import LARGEST, TOO_LARGE
from fcaffe.solvers.snapshot.paths import HDF5_SUFFIX
from fcaffe.solvers.snapshot.state import CarriedArray, State, carried_of, size_of

__all__ = ["CarriedArray", "State", "read_state", "size_of", "write_state"]


def read_state(path: str | os.PathLike[str]) -> State:
    """Read a state of either format, which the first bytes tell. Raises SnapshotError."""
    if file_start(path).startswith(HDF5_MAGIC):
        from fcaffe.solvers.snapshot import hdf5_states

        return hdf5_states.read(path)
    message, stored_of = read_outline(path, pb.StateBytes)
    check_written(message, path)
    try:
        history = [stored_of(blob) for blob in message.history]
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
