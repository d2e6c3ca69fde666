"""Solver states in files: .solverstate and, in HDF5, .solverstate.h5. Whatever the file, a state reads the same."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import SnapshotError
from fcaffe.net.model_files.hdf5_file import read_array, reading, write_string, writing
from fcaffe.net.model_files.model import check_text
from fcaffe.proto import (
    StoredBlob,
    check_written,
    file_start,
    read_binary,
    stored_blob,
    stored_to_proto,
    write_binary,
)
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import HDF5_MAGIC
from fcaffe.proto.blobs import LARGEST, TOO_LARGE

HDF5_SUFFIX = ".h5"
APART = 1 << 20  # bytes from which on HDF5 files keep a carried array as a dataset of its own


@dataclass
class CarriedArray:
    """An array that somebody carries from one iteration to the next; the fields are those of the message."""

    net: str
    owner: str
    worker: int
    name: str
    values: np.ndarray

    def to_message(self, with_values: bool) -> Any:
        data = self.values.tobytes() if with_values else b""
        kind, shape = self.values.dtype.str, self.values.shape
        return pb.CarriedArray(
            net=self.net, owner=self.owner, worker=self.worker, name=self.name, type=kind, dim=shape, data=data
        )


@dataclass
class State:
    """What a training run needs besides the weights to go on.

    `learned_net` is the path of the model, `resume` the ResumeState that Caffe leaves out, None in a file of Caffe's.
    What that has of carried arrays stands in `carried`.
    """

    iteration: int
    current_step: int
    learned_net: str
    history: list[StoredBlob]
    resume: Any = None
    carried: list[CarriedArray] = field(default_factory=list)


def is_hdf5_state(path: str | os.PathLike[str]) -> bool:
    """Whether an HDF5 file holds a state. Raises SnapshotError if it cannot be read at all."""
    with reading(path) as file:
        return "iter" in file and "history" in file


def read_state(path: str | os.PathLike[str]) -> State:
    """The state in a file, of the format that the file's first bytes tell. Raises SnapshotError."""
    if file_start(path).startswith(HDF5_MAGIC):
        return _read_hdf5(path)
    message = read_binary(path, pb.StateBytes)
    check_written(message, path)
    try:
        history = [stored_blob(blob) for blob in message.history]
        check_text(message.resume)
        carried = [_carried(array) for array in message.resume.carried]
    except SnapshotError as problem:
        raise SnapshotError(f"{path}: {problem}") from None
    if not message.HasField("current_step"):
        log.warning(f"{path} has no current_step, as if cut off behind its history, or of the first Caffe: taken for 0")
    resume = None
    if message.HasField("resume"):
        message.resume.ClearField("carried")
        resume = pb.ResumeState.FromString(message.resume.SerializeToString())
    return State(message.iter, message.current_step, message.learned_net, history, resume, carried)


def write_state(path: str | os.PathLike[str], state: State) -> None:
    """Write a state, whole or not at all, in the format that the name's ending tells (SnapshotError)."""
    if os.fspath(path).endswith(HDF5_SUFFIX):
        _write_hdf5(path, state)
        return
    size = size_of(state)
    if size > LARGEST:
        raise SnapshotError(f"cannot write {path}: with {size} bytes it {TOO_LARGE}")
    message = pb.SolverState(
        iter=state.iteration,
        learned_net=state.learned_net,
        current_step=state.current_step,
        history=[stored_to_proto(blob) for blob in state.history],
        resume=state.resume,
    )
    message.resume.carried.extend(array.to_message(with_values=True) for array in state.carried)
    if state.resume is None and not state.carried:
        message.ClearField("resume")
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
        resume, carried = None, []
        if "resume" in file:
            resume = pb.ResumeState.FromString(read_array(file["resume/state"]).tobytes())
            check_text(resume)
            carried = [
                _carried(array, read_array(file[path]) if (path := f"resume/carried/{index}") in file else None)
                for index, array in enumerate(resume.carried)
            ]
            resume.ClearField("carried")
        return State(
            iteration=_number(file, "iter"),
            current_step=_number(file, "current_step"),
            learned_net=file["learned_net"][()].decode(),
            history=[StoredBlob(array.shape, array) for array in arrays],
            resume=resume,
            carried=carried,
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
            resume = pb.ResumeState()
            resume.CopyFrom(state.resume)
            resume.carried.extend(array.to_message(array.values.nbytes < APART) for array in state.carried)
            group = file.create_group("resume")
            group.create_dataset("state", data=np.frombuffer(resume.SerializeToString(), np.uint8))
            for index, array in enumerate(state.carried):
                if array.values.nbytes < APART:
                    continue
                content = np.frombuffer(array.values.tobytes(), np.uint8)
                group.create_dataset(f"carried/{index}", data=content)


def size_of(state: State) -> int:
    """The bytes of its arrays."""
    return sum(blob.nbytes for blob in state.history) + sum(array.values.nbytes for array in state.carried)


def _carried(message: Any, apart: np.ndarray | None = None) -> CarriedArray:
    """The array that a message describes, its bytes in there or `apart`. SnapshotError if they do not fit together."""
    content = np.frombuffer(message.data, np.uint8) if apart is None else apart
    what = f'the array "{message.name}" that "{message.owner}" carries'
    try:
        kind, shape = np.dtype(message.type), tuple(message.dim)
    except TypeError:
        raise SnapshotError(f"{what} is of the type {message.type!r}, which there is not; it is damaged") from None
    if kind.kind not in "biuf" or min(shape, default=0) < 0 or content.nbytes != kind.itemsize * math.prod(shape):
        raise SnapshotError(f"{what}, {message.type} of shape {shape}, has {content.nbytes} bytes; it is damaged")
    values = np.frombuffer(content.tobytes(), kind).reshape(shape)
    return CarriedArray(message.net, message.owner, message.worker, message.name, values)


def _number(file: Any, name: str) -> int:
    (number,) = read_array(file[name]).reshape(-1)
    return int(number)
