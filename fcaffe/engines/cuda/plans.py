"""cuDNN's plans: for each signature of an operation the first proposal of the heuristics that this GPU can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fcaffe import log

WORKSPACE_PART = 16  # of the GPU's memory, so that all runs take the same plans

Build = Callable[[Any], None]  # puts tensors and operations into a graph
Signature = tuple[Any, ...]


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
        self._found: dict[Signature, Plan | None] = {}
        self._has_warned = False  # of a signature without a plan
        self._workspaces: list[Any] = []  # the last one is in use; recorded graphs may use the others

    def find(self, signature: Signature, build: Build) -> Plan | None:
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

    def _plans(self, build: Build) -> Iterator[Plan]:
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
