"""Reads and writes solver states, .solverstate and .solverstate.h5 in HDF5."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe import log
from fcaffe.errors import SnapshotError
from fcaffe.hdf5 import check_sizes, member, names_in, new_file, opened, read_array, shape_of, values_of
from fcaffe.input_files import asking
from fcaffe.model_files.model import check_text
from fcaffe.proto import StoredBlob, write_binary
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import HDF5_MAGIC, check_written, file_start, read_outline
from fcaffe.proto.blobs import LARGEST, TOO_LARGE
from fcaffe.solvers.snapshot.paths import HDF5_SUFFIX


@dataclass
class CarriedArray:
    """An array of an owner's state. The fields are those of the message."""

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
    """The state of a training run without its weights.

    `learned_net` is the path of the model. `resume` is the ResumeState without its carried arrays, which are in
    `carried`; None in a file that Caffe wrote.
    """

    iteration: int
    current_step: int
    learned_net: str
    history: list[StoredBlob]
    resume: Any = None
    carried: list[CarriedArray] = field(default_factory=list)


def is_hdf5_state(path: str | os.PathLike[str]) -> bool:
    """Whether an HDF5 file holds a state. Raises SnapshotError if it cannot be read."""
    with opened(path, SnapshotError) as file:
        return _is_state(file)


def read_state(path: str | os.PathLike[str]) -> State:
    """Read a state of either format, which the first bytes tell. Raises SnapshotError."""
    if file_start(path).startswith(HDF5_MAGIC):
        return _read_hdf5(path)
    message, stored_of = read_outline(path, pb.StateBytes)
    check_written(message, path)
    try:
        history = [stored_of(blob) for blob in message.history]
        check_text(message)
        carried = [_carried(array, np.frombuffer(array.data, np.uint8)) for array in message.resume.carried]
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
        _write_hdf5(path, state)
        return
    size = size_of(state)
    if size > LARGEST:
        raise SnapshotError(f"cannot write {path}: with {size} bytes it {TOO_LARGE}")
    message = pb.SolverState(iter=state.iteration, learned_net=state.learned_net, current_step=state.current_step)
    if state.resume is not None:
        message.resume.CopyFrom(state.resume)
        message.resume.carried.extend(array.to_message(with_values=True) for array in state.carried)
    write_binary(path, message, state.history)


def _is_state(file: Any) -> bool:
    return member(file, "iter") is not None and member(file, "history") is not None


def _read_hdf5(path: str | os.PathLike[str]) -> State:
    with opened(path, SnapshotError) as file:
        if not _is_state(file):
            model = member(file, "data") is not None
            raise SnapshotError(
                "this is a model, not a solver state; give it as --weights" if model else "there is no state in it"
            )
        datasets = [_dataset(file, f"history/{index}") for index in range(len(names_in(member(file, "history"))))]
        check_sizes(datasets)
        history = [StoredBlob(shape_of(dataset), values_of(dataset)) for dataset in datasets]
        resume, carried = None, []
        if member(file, "resume") is not None:
            resume = _resume(_dataset(file, "resume/state"))
            for index, array in enumerate(resume.carried):
                carried.append(_carried(array, read_array(_dataset(file, f"resume/carried/{index}"))))
            resume.ClearField("carried")
        return State(
            iteration=_number(file, "iter"),
            current_step=_number(file, "current_step"),
            learned_net=_text(file, "learned_net"),
            history=history,
            resume=resume,
            carried=carried,
        )


def _write_hdf5(path: str | os.PathLike[str], state: State) -> None:
    """Write Caffe's layout, and a group `resume` that Caffe ignores."""
    with new_file(path, "solver state", SnapshotError) as file:
        file.array(file.root, "iter", np.array([state.iteration], np.int32))
        file.string(file.root, "learned_net", state.learned_net)
        file.array(file.root, "current_step", np.array([state.current_step], np.int32))
        history = file.group(file.root, "history")
        for index, blob in enumerate(state.history):
            assert blob.data is not None
            file.array(history, str(index), blob.data)
        if state.resume is not None:
            resume = pb.ResumeState()
            resume.CopyFrom(state.resume)
            resume.carried.extend(array.to_message(with_values=False) for array in state.carried)
            group = file.group(file.root, "resume")
            file.array(group, "state", np.frombuffer(resume.SerializeToString(), np.uint8))
            carried = file.group(group, "carried")
            for index, array in enumerate(state.carried):
                file.array(carried, str(index), np.frombuffer(array.values.tobytes(), np.uint8))


def size_of(state: State) -> int:
    """The bytes of its arrays."""
    return sum(blob.nbytes for blob in state.history) + sum(array.values.nbytes for array in state.carried)


def _carried(message: Any, content: np.ndarray) -> CarriedArray:
    """The array of a message, with the bytes `content`. Raises SnapshotError."""
    what = f'the array "{message.name}" that "{message.owner}" carries'
    try:
        kind, shape = np.dtype(message.type), tuple(message.dim)
    except TypeError:
        raise SnapshotError(f"{what} is of the unknown type {message.type!r}; it is damaged") from None
    if kind.kind not in "biuf" or min(shape, default=0) < 0 or content.nbytes != kind.itemsize * math.prod(shape):
        raise SnapshotError(f"{what}, {message.type} of shape {shape}, has {content.nbytes} bytes; it is damaged")
    values = np.frombuffer(content.tobytes(), kind).reshape(shape)
    return CarriedArray(message.net, message.owner, message.worker, message.name, values)


def _dataset(file: Any, path: str) -> Any:
    found = member(file, path)
    if found is None:
        raise SnapshotError(f'it has no "{path}"; the file is damaged')
    return found


def _number(file: Any, name: str) -> int:
    dataset = _dataset(file, name)
    if math.prod(shape_of(dataset)) != 1:
        raise SnapshotError(f'"{dataset.name}" is no single number; the file is damaged')
    return int(read_array(dataset).reshape(-1)[0])


def _text(file: Any, name: str) -> str:
    """A string of fixed or variable length."""
    dataset = _dataset(file, name)
    with asking():
        text = dataset[()] if getattr(dataset, "shape", None) == () else None
    try:
        if isinstance(text, bytes):
            return text.decode()
    except UnicodeDecodeError:
        pass
    raise SnapshotError(f'"{dataset.name}" is no text; the file is damaged')


def _resume(dataset: Any) -> Any:
    try:
        resume = pb.ResumeState.FromString(read_array(dataset).tobytes())
    except DecodeError as problem:
        raise SnapshotError(f'"{dataset.name}" cannot be read; the file is damaged') from problem
    check_text(resume)
    return resume
