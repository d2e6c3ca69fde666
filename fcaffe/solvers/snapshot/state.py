"""The state of a training run in memory, whatever the format of its file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb


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
