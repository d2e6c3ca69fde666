"""Preprocessing of images as part of the ONNX graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fcaffe.errors import UsageError
from fcaffe.onnx.writing.graph import Graph, Shape
from fcaffe.proto.binary import read_blob
from fcaffe.tools.numpy_files import load_numpy


@dataclass(frozen=True)
class Preprocessing:
    """y = (x - mean) * scale, as in Caffe's transform_param, after an optional reversal of the channels.

    `mean` has the shape (C,), (1,) or (C, H, W), in the order of the net's channels. The middle of a larger mean image
    is used, as in phase TEST.
    """

    mean: np.ndarray | None = None
    scale: float = 1.0
    reverse_channels: bool = False

    def _steps(self, shape: Shape) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the operators, and their constants for images of this shape."""
        if self.reverse_channels:
            yield "Gather", np.arange(shape[1])[::-1].astype(np.int64)
        if self.mean is not None:
            yield "Sub", _mean_for(np.asarray(self.mean, np.float32), shape)
        if self.scale != 1:
            yield "Mul", np.array(self.scale, np.float32)

    def write(self, graph: Graph, x: str, shape: Shape) -> str:
        """Add the nodes for the value `x` of this shape, and return the name of the result."""
        for kind, array in self._steps(shape):
            constant, made = graph.constant(array, f"preprocessing:{kind}:constant"), graph.value(f"{x}:{kind}")
            attributes = {"axis": 1} if kind == "Gather" else {}
            graph.add(kind, [x, constant], [made], f"preprocessing:{kind}", **attributes)
            x = made
        return x

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Apply the preprocessing in NumPy."""
        for kind, array in self._steps(x.shape):
            x = x[:, array] if kind == "Gather" else x - array if kind == "Sub" else x * array
        return x


def _mean_for(mean: np.ndarray, shape: Shape) -> np.ndarray:
    """The mean in a shape that broadcasts to (N, C, H, W). Raises UsageError if it does not fit."""
    if mean.ndim == 1 and mean.size in (1, shape[1]):
        return mean.reshape(-1, 1, 1)
    if mean.ndim == 3 and mean.shape[0] == shape[1] and mean.shape[1] >= shape[2] and mean.shape[2] >= shape[3]:
        top, left = ((have - want) // 2 for have, want in zip(mean.shape[1:], shape[2:], strict=True))
        return mean[:, top : top + shape[2], left : left + shape[3]]
    raise UsageError(f"a mean of shape {mean.shape} does not fit the net's input of shape {shape}")


def read_mean(text: str) -> np.ndarray:
    """Read the mean of --mean: numbers, or a .binaryproto or .npy file. Raises UsageError, SnapshotError."""
    words = text.split(",")
    try:
        return np.array([float(word) for word in words], np.float32)
    except ValueError:
        if len(words) > 1:
            raise UsageError(f"--mean takes a file, or a number for each channel, not '{text}'") from None
    if text.endswith(".npy"):
        values = np.asarray(load_numpy(text, "a mean"), np.float32)
    else:
        values = np.asarray(read_blob(text).data, np.float32)
    return values[0] if values.ndim == 4 and values.shape[0] == 1 else values
