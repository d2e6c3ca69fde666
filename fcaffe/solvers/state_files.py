"""Solver states in files: .solverstate and, in HDF5, .solverstate.h5. Whatever the file, a state reads the same."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.net.model_files.hdf5_file import read_array, reading, write_string, writing
from fcaffe.net.model_files.model import check_text
from fcaffe.proto import StoredBlob, file_start, read_binary, stored_blob, stored_to_proto, write_binary
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import HDF5_MAGIC
from fcaffe.proto.blobs import LARGEST, TOO_LARGE

HDF5_SUFFIX = ".h5"


@dataclass
class State:
    """What a training run needs besides the weights to go on.

    `learned_net` is the path of the model, `resume` the ResumeState that Caffe leaves out, None in a file of Caffe's.
    """

    iteration: int
    current_step: int
    learned_net: str
    history: list[StoredBlob]
    resume: Any = None


def is_hdf5_state(path: str | os.PathLike[str]) -> bool:
    """Whether an HDF5 file holds a state. Raises SnapshotError if it cannot be read at all."""
    with reading(path) as file:
        return "iter" in file and "history" in file


def read_state(path: str | os.PathLike[str]) -> State:
    """The state in a file, of the format that the file's first bytes tell. Raises SnapshotError."""
    if file_start(path).startswith(HDF5_MAGIC):
        return _read_hdf5(path)
    message = read_binary(path, pb.StateBytes)
    try:
        history = [stored_blob(blob) for blob in message.history]
        check_text(message.resume)
    except SnapshotError as problem:
        raise SnapshotError(f"{path}: {problem}") from None
    resume = pb.ResumeState.FromString(message.resume.SerializeToString()) if message.HasField("resume") else None
    return State(message.iter, message.current_step, message.learned_net, history, resume)


def write_state(path: str | os.PathLike[str], state: State) -> None:
    """Write a state, whole or not at all, in the format that the name's ending tells (SnapshotError)."""
    if os.fspath(path).endswith(HDF5_SUFFIX):
        _write_hdf5(path, state)
        return
    size = sum(blob.nbytes for blob in state.history)
    if size > LARGEST:
        raise SnapshotError(f"cannot write {path}: with {size} bytes it {TOO_LARGE}")
    message = pb.SolverState(
        iter=state.iteration,
        learned_net=state.learned_net,
        current_step=state.current_step,
        history=[stored_to_proto(blob) for blob in state.history],
        resume=state.resume,
    )
    write_binary(path, message)


def _read_hdf5(path: str | os.PathLike[str]) -> State:
    with reading(path) as file:
        if "iter" not in file or "history" not in file:  # as in is_hdf5_state
            model = "data" in file
            raise SnapshotError(
                "this is a model, not a solver state; give it as --weights" if model else "there is no state in it"
            )
        history = file["history"]
        arrays = [read_array(history[str(index)]) for index in range(len(history))]
        resume = None
        if "resume" in file:
            resume = pb.ResumeState.FromString(read_array(file["resume/state"]).tobytes())
            check_text(resume)
        return State(
            iteration=_number(file, "iter"),
            current_step=_number(file, "current_step"),
            learned_net=file["learned_net"][()].decode(),
            history=[StoredBlob(array.shape, array) for array in arrays],
            resume=resume,
        )


def _write_hdf5(path: str | os.PathLike[str], state: State) -> None:
    """Caffe's layout, and a group `resume` that Caffe passes over."""
    with writing(path) as file:
        file.create_dataset("iter", data=np.array([state.iteration], np.int32))
        write_string(file, "learned_net", state.learned_net)
        file.create_dataset("current_step", data=np.array([state.current_step], np.int32))
        history = file.create_group("history")
        for index, blob in enumerate(state.history):
            history.create_dataset(str(index), data=blob.data)
        if state.resume is not None:
            content = np.frombuffer(state.resume.SerializeToString(), np.uint8)
            file.create_group("resume").create_dataset("state", data=content)


def _number(file: Any, name: str) -> int:
    (number,) = read_array(file[name]).reshape(-1)
    return int(number)
