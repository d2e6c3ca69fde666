"""Files of snapshots: their paths, and solver states in both of Caffe's formats.

A `State` is that of a file, .solverstate or .solverstate.h5.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe import log
from fcaffe.errors import SnapshotError, SolverError
from fcaffe.hdf5 import (
    check_sizes,
    h5py,
    member,
    names_in,
    new_file,
    opened,
    put_string,
    read_array,
    shape_of,
    values_of,
)
from fcaffe.input_files import asking
from fcaffe.model_files import Model, read_model
from fcaffe.model_files.model import check_text
from fcaffe.output_files import remove_leftovers
from fcaffe.proto import StoredBlob, write_binary
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import HDF5_MAGIC, check_written, file_start, read_binary
from fcaffe.proto.blobs import LARGEST, TOO_LARGE, stored_blob

HDF5_SUFFIX = ".h5"


def check_writable(param: Any) -> None:
    """Raise FcaffeError if snapshots cannot be written, and remove unfinished files of killed runs."""
    if not (param.snapshot or param.snapshot_after_train):
        return
    if not param.HasField("snapshot_prefix"):
        raise SolverError("the solver has no snapshot_prefix; give one, or set snapshot_after_train: false")
    if param.snapshot_format == pb.SolverParameter.HDF5:
        h5py()  # raises if it is missing
    probe = Path(f"{param.snapshot_prefix}.tempfile")
    try:
        probe.touch()
        probe.unlink(missing_ok=True)  # another training with this prefix may have done it
    except OSError as problem:
        raise SnapshotError(
            f"Cannot write to snapshot prefix '{param.snapshot_prefix}' ({problem.strerror}). "
            "Make sure that the directory exists and is writable."
        ) from problem
    remove_leftovers(f"{param.snapshot_prefix}_iter_")


def check_layer_names(param: Any, layers: Sequence[Any]) -> None:
    """Raise SnapshotError if the solver's snapshots are HDF5, which cannot hold layers of all names."""
    if param.snapshot_format == pb.SolverParameter.HDF5 and (param.snapshot or param.snapshot_after_train):
        from fcaffe.model_files.hdf5 import check_names

        check_names(layers)


def paths(prefix: str, iteration: int, hdf5: bool = False) -> tuple[str, str]:
    """The paths of the model and the state."""
    stem, suffix = f"{prefix}_iter_{iteration}", HDF5_SUFFIX if hdf5 else ""
    return f"{stem}.caffemodel{suffix}", f"{stem}.solverstate{suffix}"


def best_path(param: Any) -> str:
    """The path of the weights of the best test of a run with these solver parameters."""
    suffix = HDF5_SUFFIX if param.snapshot_format == pb.SolverParameter.HDF5 else ""
    return f"{param.snapshot_prefix}_best.caffemodel{suffix}"


def temporary_prefix(prefix: str) -> str:
    """The prefix of the snapshots that --snapshot-every writes, which stay until the training has ended well."""
    return f"{prefix}_temporary"


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


def size_of(state: State) -> int:
    """The bytes of its arrays."""
    return sum(blob.nbytes for blob in state.history) + sum(array.values.nbytes for array in state.carried)


def carried_of(message: Any, content: np.ndarray) -> CarriedArray:
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


def read_state(path: str | os.PathLike[str]) -> State:
    """Read a state of either format, which the first bytes tell. Raises SnapshotError."""
    if file_start(path).startswith(HDF5_MAGIC):
        return _read_hdf5(path)
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


# --- HDF5 -------------------------------------------------------------------------------------------------------------


def is_hdf5_state(path: str | os.PathLike[str]) -> bool:
    """Whether an HDF5 file holds a state. Raises SnapshotError if it cannot be read."""
    with opened(path, SnapshotError) as file:
        return _is_state(file)


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
                carried.append(carried_of(array, read_array(_dataset(file, f"resume/carried/{index}"))))
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
        file.create_dataset("iter", data=np.array([state.iteration], np.int32))
        put_string(file, "learned_net", state.learned_net)
        file.create_dataset("current_step", data=np.array([state.current_step], np.int32))
        history = file.create_group("history")
        for index, blob in enumerate(state.history):
            history.create_dataset(str(index), data=blob.data)
        if state.resume is not None:
            resume = pb.ResumeState()
            resume.CopyFrom(state.resume)
            resume.carried.extend(array.to_message(with_values=False) for array in state.carried)
            group = file.create_group("resume")
            group.create_dataset("state", data=np.frombuffer(resume.SerializeToString(), np.uint8))
            carried = group.create_group("carried")
            for index, array in enumerate(state.carried):
                carried.create_dataset(str(index), data=np.frombuffer(array.values.tobytes(), np.uint8))


def _is_state(file: Any) -> bool:
    return member(file, "iter") is not None and member(file, "history") is not None


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
