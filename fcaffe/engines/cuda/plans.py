"""cuDNN's plans: for each signature of an operation the fastest one, timed once and remembered in a file."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcaffe import log

MOST_TIMED = 6  # plans of a graph, in the order of cuDNN's heuristics
RUNS = 3  # of each, after one to warm up
MOST_WORKSPACE = 1 << 30  # bytes

Build = Callable[[Any], None]  # puts tensors and operations into a graph
Signature = tuple[Any, ...]


@dataclass(frozen=True)
class Plan:
    """One way to compute a graph. `variant` is the name of the graph among those that would do."""

    variant: str
    graph: Any
    index: int
    name: str
    workspace: int  # bytes


class Plans:
    """The plans of an engine.

    cuDNN offers several for a graph, which differ in speed and in their last bits. Here each signature is timed once on
    a kind of GPU, under a lock, and the choice kept in a file: so later runs, and other workers of the host, compute
    with the same ones. Unless `deterministic` is False, only those count that give the same bits each time.
    """

    def __init__(self, cupy: Any, cudnn: Any, stream: Any, math: str, deterministic: bool) -> None:
        self.cupy, self.cudnn, self.stream = cupy, cudnn, stream
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
        self._told = False  # that there is none
        self._setting = (math, deterministic)
        self._choices = Choices(cupy, cudnn)
        self._workspaces: list[Any] = []  # the last one is in use; graphs may hold on to the others

    def find(
        self, signature: Signature, variants: Mapping[str, Build], run: Callable[[Plan], None] | None = None
    ) -> Plan | None:
        """The plan for this signature: the fastest of those of all `variants`, each a graph that would do.

        `run` computes the operation by a plan, for timing. None if cuDNN supports none of the graphs, of which the
        first is told in the log.
        """
        if signature not in self._found:
            self._found[signature] = self._choose(signature, variants, run)
            if self._found[signature] is None and not self._told:
                self._told = True
                log.warning(
                    f"cuDNN has no plan for {' '.join(map(str, signature))}: this is computed by plain array code, "
                    "which is slower, and so are others of its kind"
                )
        return self._found[signature]

    def execute(self, plan: Plan, pointers: dict[int, int]) -> None:
        """Compute a plan's graph on the memory at these addresses, by the tensors' numbers."""
        plan.graph.execute_plan_at_index(pointers, self._workspace(plan.workspace), plan.index, self.handle)

    def _choose(
        self, signature: Signature, variants: Mapping[str, Build], run: Callable[[Plan], None] | None
    ) -> Plan | None:
        key = repr((*self._setting, *signature))
        if not self.stream.is_capturing():
            # Who has the lock must not wait for a sum over workers, one of whom may wait for the lock; and timing wants
            # the device for itself.
            self.cupy.cuda.runtime.deviceSynchronize()
        with self._choices.locked():
            known = self._choices.find(key)
            if known is not None and known[0] in variants:
                for plan in self._plans(known[0], variants[known[0]], known[1]):
                    return plan
            plans = [plan for variant, build in variants.items() for plan in self._plans(variant, build)]
            if not plans:
                return None
            if run is None or len(plans) == 1 or self.stream.is_capturing():
                return plans[0]
            wanted = len(self._workspaces)
            best = min(plans, key=lambda plan: self._seconds(plan, run))
            del self._workspaces[wanted:]  # those of others may be much larger
            self._choices.keep(key, (best.variant, best.name))
            return best

    def _plans(self, variant: str, build: Build, name: str | None = None) -> Iterator[Plan]:
        """Those that can be built: of this name, or the first few."""
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
        built = 0
        for index in range(graph.get_execution_plan_count()):
            if built == MOST_TIMED:
                return
            try:
                if name is not None and graph.get_plan_name_at_index(index) != name:
                    continue
                graph.build_plan_at_index(index)
            except (RuntimeError, cudnn.cudnnGraphNotSupportedError):  # refused, or not for this GPU after all
                continue
            workspace = graph.get_workspace_size_plan_at_index(index)
            if workspace <= MOST_WORKSPACE:
                built += 1
                yield Plan(variant, graph, index, graph.get_plan_name_at_index(index), workspace)

    def _seconds(self, plan: Plan, run: Callable[[Plan], None]) -> float:
        events = [self.cupy.cuda.Event() for _ in range(RUNS + 1)]
        try:
            run(plan)
            for number, event in enumerate(events):
                event.record(self.stream)
                if number < RUNS:
                    run(plan)
            events[-1].synchronize()
        except RuntimeError:
            return float("inf")
        elapsed = self.cupy.cuda.get_elapsed_time
        return min(float(elapsed(first, last)) for first, last in itertools.pairwise(events))

    def _workspace(self, size: int) -> int:
        if not size:
            return 0
        if not self._workspaces or self._workspaces[-1].nbytes < size:
            self._workspaces.append(self.cupy.empty(size, "uint8"))
        return int(self._workspaces[-1].data.ptr)


class Choices:
    """Which plan was the fastest for which signature, on this kind of GPU with this cuDNN: a JSON file in the user's
    cache folder. Where that cannot be written, only this process remembers."""

    def __init__(self, cupy: Any, cudnn: Any) -> None:
        number = cupy.cuda.runtime.getDevice()
        device = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode().replace(" ", "-")
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fcaffe"
        self.path = folder / f"plans-{device}-cudnn{cudnn.backend_version()}.json"
        self._known: dict[str, tuple[str, str]] = {}
        self._told = False

    def find(self, key: str) -> tuple[str, str] | None:
        """(variant, name of the plan)."""
        return self._known.get(key)

    def keep(self, key: str, choice: tuple[str, str]) -> None:
        self._known[key] = choice
        temporary = self.path.with_suffix(f".{os.getpid()}")
        try:
            temporary.write_text(json.dumps(self._known, indent=0))
            temporary.replace(self.path)
        except OSError as problem:
            self._tell(problem)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """In its body no other process of this user times plans; what they have found before is known."""
        lock = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = open(self.path.with_suffix(".lock"), "w")  # noqa: SIM115 (closed below; opening may fail)
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read()
        except OSError as problem:
            self._tell(problem)
        try:
            yield
        finally:
            if lock is not None:
                lock.close()

    def _read(self) -> None:
        with contextlib.suppress(FileNotFoundError, ValueError):  # a damaged file is written anew
            stored = json.loads(self.path.read_text())
            self._known |= {key: (str(variant), str(name)) for key, (variant, name) in stored.items()}

    def _tell(self, problem: OSError) -> None:
        if not self._told:
            self._told = True
            log.warning(
                f"cuDNN's fastest plans cannot be kept in {self.path} ({problem.strerror}): each run times them anew, "
                "and may choose ones that differ in the last bits; XDG_CACHE_HOME names another folder"
            )
