"""Convolution and its gradients by cuDNN's graphs; bias and ReLU by kernels of formulas.

A graph has several plans. The first proposal of cuDNN's heuristics that this GPU can run is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fcaffe import log
from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.cuda.operands import FLOAT, LIMITS, Operands
from fcaffe.engines.limits import UnfitError, or_plain
from fcaffe.engines.memory import Array
from fcaffe.engines.windows import Windows

X, WEIGHTS, Y = 1, 2, 3  # numbers of the tensors in a graph
OPERATIONS = {  # method of the graph, names of its operands
    "forward": ("conv_fprop", "image", "weight"),
    "data": ("conv_dgrad", "loss", "filter"),
    "weights": ("conv_wgrad", "image", "loss"),
}

WORKSPACE_PART = 16  # of the GPU's memory, so that all runs take the same plans


@dataclass(frozen=True)
class Plan:
    """One way to compute a graph."""

    graph: Any
    index: int
    workspace: int  # bytes


class Plans:
    """The plans of an engine.

    The heuristics depend on the kind of GPU and the version of cuDNN only, so all runs and workers compute with the
    same plans. With `deterministic`, plans whose bits differ from run to run are refused.
    """

    def __init__(self, cupy: Any, cudnn: Any, stream: Any, math: str, deterministic: bool) -> None:
        self.cupy, self.cudnn = cupy, cudnn
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=stream.ptr)
        notes = cudnn.numerical_note
        self._refused = [notes.REDUCED_PRECISION_REDUCTION]
        if deterministic:
            self._refused.append(notes.NONDETERMINISTIC)
        if math == "fp32":
            self._refused += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS]
            # Winograd's transforms of large tiles lose digits that Caffe has.
            self._refused += [notes.WINOGRAD_TILE_4x4, notes.WINOGRAD_TILE_6x6, notes.WINOGRAD_TILE_13x13]
        self._found: dict[tuple[Any, ...], Plan | None] = {}
        self._has_warned = False  # of a signature without a plan
        self._workspaces: list[Any] = []  # the last one is in use; recorded graphs may use the others

    def find(self, signature: tuple[Any, ...], build: Callable[[Any], None]) -> Plan | None:
        """The plan for this signature, of the graph that `build` describes. None if cuDNN does not support it; the
        first time, the log has a warning."""
        if signature not in self._found:
            self._found[signature] = next(self._plans(build), None)
            if self._found[signature] is None and not self._has_warned:
                self._has_warned = True
                log.warning(
                    f"cuDNN has no plan for {' '.join(map(str, signature))}: this is computed by plain array code, "
                    "which is slower, and so are others of its kind"
                )
        return self._found[signature]

    def execute(self, plan: Plan, pointers: dict[int, int]) -> None:
        """Compute a plan's graph on the memory at these addresses, by the tensors' numbers."""
        plan.graph.execute_plan_at_index(pointers, self._workspace(plan.workspace), plan.index, self.handle)

    def _plans(self, build: Callable[[Any], None]) -> Iterator[Plan]:
        """Yields the plans that can be built, in the order of the heuristics."""
        cudnn = self.cudnn
        floats = cudnn.data_type.FLOAT
        graph = cudnn.pygraph(handle=self.handle, intermediate_data_type=floats, compute_data_type=floats)
        try:
            build(graph)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        except (RuntimeError, cudnn.cudnnGraphNotSupportedError):
            return
        graph.deselect_numeric_notes(self._refused)
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
            except (RuntimeError, cudnn.cudnnGraphNotSupportedError):  # refused, or not for this GPU after all
                continue
            workspace = graph.get_workspace_size_plan_at_index(index)
            free, total = self.cupy.cuda.runtime.memGetInfo()
            free += self.cupy.get_default_memory_pool().free_bytes()
            if workspace <= min(free, total // WORKSPACE_PART):
                yield Plan(graph, index, workspace)

    def _workspace(self, size: int) -> int:
        if not size:
            return 0
        if not self._workspaces or self._workspaces[-1].nbytes < size:
            self._workspaces.append(self.cupy.empty(size, "uint8"))
        return int(self._workspaces[-1].data.ptr)


class Convolution(Operands, PlainConvolution):
    """x (N, C, spatial...), weights (M, C / group, kernel...), bias (M,) or None, y (N, M, output_size...).

    One to three spatial axes. cuDNN derives the number of groups from the channels of the weights. It takes arrays that
    are channels-last, aligned and of one type: the engine's 16-bit type, if it has one. Others are copied first.
    """

    plans: Plans

    @or_plain
    def convolution_forward(
        self, x: Array, weights: Array, bias: Array, y: Array, windows: Windows, group: int, relu: bool = False
    ) -> None:
        LIMITS["convolution"].check([x, y])
        out = _with_two_axes(y)
        target = self._computed("forward", {X: x, WEIGHTS: weights}, Y, out, windows)
        if bias is not None:
            self.add_bias(target, bias, relu)
        elif relu:
            self.relu_forward(target, target, 0)
        self.deliver(target, out)

    @or_plain
    def convolution_backward_data(self, dy: Array, weights: Array, dx: Array, windows: Windows, group: int) -> None:
        LIMITS["convolution"].check([dx, dy])
        out = _with_two_axes(dx)
        self.deliver(self._computed("data", {Y: dy, WEIGHTS: weights}, X, out, windows), out)

    @or_plain
    def convolution_backward_weights(
        self, x: Array, dy: Array, dweights: Array, windows: Windows, group: int, add: bool
    ) -> None:
        LIMITS["convolution"].check([x, dy])
        out = _with_two_axes(dweights)
        into = self.empty_channels_last(out.shape, dweights.dtype) if add else out
        target = self._computed("weights", {X: x, Y: dy}, WEIGHTS, into, windows)
        if add:
            out += target
        else:
            self.deliver(target, out)

    def _computed(self, operation: str, operands: dict[int, Array], result: int, out: Array, windows: Windows) -> Array:
        """The result of cuDNN, in `out` or in another array that cuDNN can write; arrays by the numbers of their
        tensors. Raises UnfitError if there is no plan."""
        kind = FLOAT if self.half_dtype is None else self.half_dtype
        given = {number: self.operand(_with_two_axes(array), kind) for number, array in operands.items()}
        target, of, (method, *names) = self.result(out, kind), _on_two_axes(windows), OPERATIONS[operation]
        arrays = {**given, result: target}
        types = self.plans.cudnn.data_type
        cudnn_type = {"float32": types.FLOAT, "float16": types.HALF, "bfloat16": types.BFLOAT16}[kind.name]

        def build(graph: Any) -> None:
            tensors = {
                name: graph.tensor(
                    dim=list(array.shape), stride=_channels_last_strides(array.shape), data_type=cudnn_type, uid=number
                )
                for name, (number, array) in zip(names, given.items(), strict=True)
            }
            geometry = {"padding": list(of.pad), "stride": list(of.stride), "dilation": list(of.dilation)}
            output = getattr(graph, method)(**tensors, **geometry)
            output.set_uid(result).set_output(True).set_data_type(cudnn_type)
            output.set_dim(list(target.shape)).set_stride(_channels_last_strides(target.shape))

        shapes = [arrays[number].shape for number in (X, WEIGHTS, Y)]
        plan = self.plans.find((operation, kind.name, *shapes, of), build)
        if plan is None:
            raise UnfitError
        self.plans.execute(plan, {number: array.data.ptr for number, array in arrays.items()})
        return target


def _channels_last_strides(shape: tuple[int, ...]) -> list[int]:
    """Of (N, C, spatial...), in elements."""
    strides, step = [0] * len(shape), 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[axis] = step
        step *= shape[axis]
    return strides


def _with_two_axes(array: Array) -> Array:
    """(N, C, 1, L) of (N, C, L): cuDNN wants two spatial axes at least."""
    return array[:, :, None] if array.ndim == 3 else array


def _on_two_axes(windows: Windows) -> Windows:
    if len(windows.kernel) != 1:
        return windows
    return Windows((1, *windows.kernel), (1, *windows.stride), (0, *windows.pad), (1, *windows.dilation))
