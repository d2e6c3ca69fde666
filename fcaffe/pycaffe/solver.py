"""pycaffe's solvers, and its NCCL for scripts that were written to train on several GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from fcaffe import solvers
from fcaffe.errors import CallError, UsageError
from fcaffe.net.script.engine_lock import engine_lock
from fcaffe.net.script.host_arrays import HostViews, host_views
from fcaffe.proto import read_solver
from fcaffe.proto.text import Source
from fcaffe.pycaffe import session
from fcaffe.pycaffe.net import Net
from fcaffe.solvers import Observer
from fcaffe.solvers.learning_rate import learning_rate

__all__ = [
    "NCCL",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "NesterovSolver",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "get_solver",
]


class Callbacks(solvers.Observer):
    """A script's functions, which may read and write any array."""

    def __init__(self, views: HostViews, on_start: Callable[[], None], on_gradients_ready: Callable[[], None]) -> None:
        self._views = views
        self._on_start = on_start
        self._on_gradients_ready = on_gradients_ready

    def iteration_begins(self) -> None:
        self._call(self._on_start)

    def gradients_ready(self) -> None:
        self._call(self._on_gradients_ready)

    def _call(self, function: Callable[[], None]) -> None:
        with self._views.user_at_work():
            function()


class Solver:
    """A solver from the path or the text of a prototxt, or from a message: its nets, and the loop to step through."""

    def __init__(self, solver_file: Source) -> None:
        self._bind(read_solver(solver_file))

    def _bind(self, param: Any) -> None:
        with engine_lock():
            self._solver = solvers.Solver(
                param, session.engine(), session.noise, random=session.random, whole_passes=False, on_demand=True
            )
        if self._solver.net.on_demand is not None:
            self._solver.net.on_demand.retire()  # each of its passes is followed by one backward
        self.param = self._solver.param
        self._views = host_views(self._solver.engine)
        self.net = Net._of(self._solver.net)
        self.test_nets = [Net._of(net) for net in self._solver.test_nets]

    @property
    def iter(self) -> int:
        """The number of updates of the weights."""
        return self._solver.iteration

    @property
    def lr(self) -> float:
        """The rate of the next update."""
        return learning_rate(self._solver.param, self._solver.iteration, self._solver.current_step)

    def step(self, iterations: int) -> None:
        with self._views.engine_at_work():
            self._solver.step(iterations)

    def solve(self, resume: str | None = None) -> None:
        with self._views.engine_at_work():
            self._solver.solve(resume)

    def snapshot(self) -> None:
        with self._views.engine_at_work():
            self._solver.snapshot()

    def restore(self, path: str) -> None:
        with self._views.engine_at_work():
            self._solver.restore(path)

    def apply_update(self) -> None:
        """Update the weights from the gradients as they stand; the iteration stays."""
        with self._views.engine_at_work():
            self._solver.apply_update()

    def share_weights(self, net: Net) -> None:
        """Let `net` use the training net's parameters."""
        net.share_with(self.net)

    def add_callback(
        self, on_start: Callable[[], Any] | solvers.Observer, on_gradients_ready: Callable[[], Any] | None = None
    ) -> None:
        """Call these before each iteration and before each update; or let an NCCL add the gradients up."""
        if isinstance(on_start, solvers.Observer):
            self._solver.observers.append(on_start)
        elif callable(on_start) and callable(on_gradients_ready):
            self._solver.observers.append(Callbacks(self._views, on_start, on_gradients_ready))
        else:
            raise CallError("add_callback takes two functions, on_start and on_gradients_ready, or an NCCL")


class SGDSolver(Solver):
    """Stochastic gradient descent. As in Caffe, this class and its subclasses pass over the prototxt's `type`."""

    _type = "SGD"

    def __init__(self, solver_file: Source) -> None:
        param = read_solver(solver_file)
        param.type = self._type
        self._bind(param)


class NesterovSolver(SGDSolver):
    _type = "Nesterov"


class AdaGradSolver(SGDSolver):
    _type = "AdaGrad"


class RMSPropSolver(SGDSolver):
    _type = "RMSProp"


class AdaDeltaSolver(SGDSolver):
    _type = "AdaDelta"


class AdamSolver(SGDSolver):
    _type = "Adam"


_CLASSES: dict[str, type[Solver]] = {
    cls._type: cls for cls in (SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver)
}


def get_solver(solver_file: Source) -> Solver:
    """Create the solver of a prototxt. Its class is that of the prototxt's `type`."""
    param = read_solver(solver_file)
    cls = _CLASSES.get(param.type, Solver)
    made = cls.__new__(cls)
    made._bind(param)
    return made


class NCCL(Observer):
    """NCCL of a single process, so sums and broadcasts change nothing. `fcaffe train` trains on several GPUs.

    Raises UsageError if `set_solver_count` has announced several processes.
    """

    def __init__(self, solver: Solver, uid: bytes | str) -> None:
        count = session.solver_count()
        if count > 1:
            raise UsageError(
                f"NCCL: set_solver_count({count}) says that {count} processes of a script train together, and fcaffe "
                f"trains one in each script; `fcaffe train --solver ... --workers {count}`, or `--gpu 0,1,...`, "
                "trains on several"
            )

    @staticmethod
    def new_uid() -> bytes:
        return os.urandom(128)

    def bcast(self) -> None:
        """Broadcast the weights: nothing to do."""

    def __call__(self, layer: int) -> None:
        """Sum the gradients of this layer, as a hook of a net: nothing to do."""
