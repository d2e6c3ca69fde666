"""A stand-in for the Python module cudnn: graphs of convolutions, computed with NumPy.

It offers each graph in three plans and refuses one of them if asked to. It knows no graph of more than four axes in 16
bits. Sums are in float32, results rounded to the type of the tensor that is written.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from fcaffe.engines import NumpyEngine
from fcaffe.engines.windows import Windows

data_type = Enum("data_type", ["FLOAT", "HALF", "BFLOAT16", "NOT_SET"])
heur_mode = Enum("heur_mode", ["A", "B", "FALLBACK"])
numerical_note = Enum(
    "numerical_note",
    "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION NONDETERMINISTIC "
    "WINOGRAD_TILE_4x4 WINOGRAD_TILE_6x6 WINOGRAD_TILE_13x13",
)
DTYPES = {data_type.FLOAT: np.float32, data_type.HALF: np.float16, data_type.BFLOAT16: ml_dtypes.bfloat16}
WORKSPACE = 256

executed: list[tuple[str, int]] = []  # the operations of each graph that was computed, and the plan


class cudnnGraphNotSupportedError(Exception):  # noqa: N801 (cudnn's name)
    pass


def create_handle() -> int:
    return 1


def set_stream(handle: int, stream: int) -> None:
    _streams[handle] = stream


_streams: dict[int, int] = {}


class Tensor:
    def __init__(self, dim: list[int] | None = None, stride: list[int] | None = None, dtype: Any = None) -> None:
        self.dim, self.stride, self.data_type = dim, stride, dtype
        self.uid, self.output = -1, False
        self.compute: Callable[[dict[int, int]], np.ndarray] | None = None

    def __getattr__(self, name: str) -> Callable[[Any], Tensor]:
        """set_uid, set_output, set_data_type, set_dim and set_stride."""
        if not name.startswith("set_"):
            raise AttributeError(name)

        def set_it(value: Any) -> Tensor:
            setattr(self, name.removeprefix("set_"), value)
            return self

        return set_it

    def memory(self, pointers: dict[int, int]) -> np.ndarray:
        """The array at this tensor's address."""
        assert self.dim is not None and self.stride is not None
        dtype = np.dtype(DTYPES[self.data_type])
        extent = 1 + sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))
        flat = cupy().as_numpy(pointers[self.uid], dtype, extent)
        return np.lib.stride_tricks.as_strided(flat, self.dim, [dtype.itemsize * s for s in self.stride])

    def value(self, pointers: dict[int, int]) -> np.ndarray:
        return self.memory(pointers).astype(np.float32) if self.compute is None else self.compute(pointers)


def cupy() -> Any:
    from tests.engines.cuda import stand_in_cupy

    return stand_in_cupy


class pygraph:  # noqa: N801 (cudnn's name)
    def __init__(self, handle: int, intermediate_data_type: Any, compute_data_type: Any) -> None:
        assert intermediate_data_type is compute_data_type is data_type.FLOAT
        self.handle = handle
        self.engine = NumpyEngine()
        self.operations: list[str] = []
        self.results: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.refused: list[Any] = []
        self.built: set[int] = set()

    def tensor(self, dim: list[int], stride: list[int], data_type: Any, uid: int) -> Tensor:
        assert all(type(n) is int for n in (*dim, *stride)), (dim, stride)
        return Tensor(dim, stride, data_type).set_uid(uid)

    def conv_fprop(self, image: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any) -> Tensor:
        windows = Windows(tuple(weight.dim[2:]), tuple(stride), tuple(padding), tuple(dilation))
        group = image.dim[1] // weight.dim[1]
        shape = (image.dim[0], weight.dim[0], *windows.convolved(tuple(image.dim[2:])))

        def compute(pointers: dict[int, int]) -> np.ndarray:
            y = np.empty(shape, np.float32)
            x, weights = image.value(pointers), weight.value(pointers)
            self.engine.convolution_forward(x, weights, None, y, windows, group)
            return y

        return self._result("forward", compute)

    def conv_dgrad(self, loss: Tensor, filter: Tensor, padding: Any, stride: Any, dilation: Any) -> Tensor:
        windows = Windows(tuple(filter.dim[2:]), tuple(stride), tuple(padding), tuple(dilation))

        def compute(pointers: dict[int, int]) -> np.ndarray:
            assert result.dim is not None
            dx = np.empty(result.dim, np.float32)
            group = result.dim[1] // filter.dim[1]
            dy, weights = loss.value(pointers), filter.value(pointers)
            self.engine.convolution_backward_data(dy, weights, dx, windows, group)
            return dx

        result = self._result("data", compute)
        return result

    def conv_wgrad(self, image: Tensor, loss: Tensor, padding: Any, stride: Any, dilation: Any) -> Tensor:
        def compute(pointers: dict[int, int]) -> np.ndarray:
            assert result.dim is not None
            windows = Windows(tuple(result.dim[2:]), tuple(stride), tuple(padding), tuple(dilation))
            dweights = np.empty(result.dim, np.float32)
            group = image.dim[1] // result.dim[1]
            x, dy = image.value(pointers), loss.value(pointers)
            self.engine.convolution_backward_weights(x, dy, dweights, windows, group, False)
            return dweights

        result = self._result("weights", compute)
        return result

    def validate(self) -> None:
        self.outputs = [tensor for tensor in self.results if tensor.output]
        (output,) = self.outputs
        assert output.uid >= 0 and output.dim is not None and output.stride is not None

    def build_operation_graph(self) -> None:
        (output,) = self.outputs
        if len(output.dim) > 4 and output.data_type is not data_type.FLOAT:
            raise cudnnGraphNotSupportedError("no engine for five axes in 16 bits")

    def create_execution_plans(self, modes: list[Any]) -> None:
        assert modes

    def deselect_numeric_notes(self, notes: list[Any]) -> None:
        self.refused = notes

    def get_execution_plan_count(self) -> int:
        return 3

    def build_plan_at_index(self, index: int) -> None:
        if index == 0 and numerical_note.NONDETERMINISTIC in self.refused:
            raise cudnnGraphNotSupportedError("deselected")
        self.built.add(index)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return index * WORKSPACE

    def execute_plan_at_index(
        self, tensor_to_device_buffer: dict[int, int], workspace: int, index: int, handle: int
    ) -> None:
        assert index in self.built and handle == self.handle
        assert bool(workspace) == bool(index)
        assert not any(address % 16 for address in tensor_to_device_buffer.values()), "a misaligned address"
        (output,) = self.outputs
        name = "+".join(self.operations)

        def run() -> None:
            output.memory(tensor_to_device_buffer)[...] = output.value(tensor_to_device_buffer)
            executed.append((name, index))

        cupy().put(run, cupy().stream_at(_streams[handle]))

    def _result(self, operation: str, compute: Callable[[dict[int, int]], np.ndarray]) -> Tensor:
        result = Tensor()
        result.compute = compute
        self.operations.append(operation)
        self.results.append(result)
        return result
