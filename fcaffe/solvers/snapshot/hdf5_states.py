"""Reads and writes solver states in HDF5."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fcaffe.errors import SnapshotError
from fcaffe.hdf5 import check_sizes, member, names_in, new_file, opened, put_string, read_array, shape_of, values_of
from fcaffe.input_files import asking
from fcaffe.model_files.model import check_text
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.snapshot.state import State, carried_of


def is_state(path: str | os.PathLike[str]) -> bool:
    """Whether an HDF5 file holds a state. Raises SnapshotError if it cannot be read."""
    with opened(path, SnapshotError) as file:
        return _is_state(file)


def read(path: str | os.PathLike[str]) -> State:
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


def write(path: str | os.PathLike[str], state: State) -> None:
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
