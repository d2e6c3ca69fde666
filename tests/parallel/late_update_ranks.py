"""One rank of trainings whose sums are slow: `python -m mpi4py late_update_ranks.py FOLDER`. Each must come to the bits
of the one that waits for all sums after backward."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from fcaffe import log
from fcaffe.engines import cpu_engine
from fcaffe.parallel.exchange import ReducingExchange
from fcaffe.parallel.reductions.tree import BinomialTree
from fcaffe.parallel.workers import MpiWorkers
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net
from fcaffe.solvers import Observer, Solver
from fcaffe.solvers.control import Action

SETTINGS: list[dict[str, object]] = [
    {},
    {"iter_size": 2},
    {"clip_gradients": 1.0},
    {"type": "Adam", "momentum2": 0.999, "delta": 1e-8},
    {"local_lr_auto": True, "local_gw_ratio": 0.1},
    {"display": 2, "debug_info": True},
    {"snapshot": 3, "test_interval": 4},
]


class SlowTree(BinomialTree):
    """Sums take their time, another one on each rank."""

    delays: np.random.Generator

    def start(self, buffer: np.ndarray, ready: object = None) -> None:
        time.sleep(0.003 * self.delays.random())
        super().start(buffer, ready)


class Waits(Observer):
    """Whether anything was still to be updated when an iteration had come to its end."""

    looks = False

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self.late = 0

    def iteration_ends(self, loss: float, rate: float) -> None:
        self.late += bool(self.solver.update._left)


class Training:
    """One training, taken through the same steps as the others."""

    def __init__(self, folder: str, settings: dict[str, object], overlap: bool) -> None:
        comm = MPI.COMM_WORLD
        param = pb.SolverParameter(net_param=read_net(f"{folder}/normalized.prototxt"), base_lr=0.05, lr_policy="fixed")
        param.momentum, param.weight_decay, param.random_seed, param.max_iter = 0.9, 0.001, 3, 100
        param.test_iter.append(2)
        param.test_interval, param.snapshot_prefix = 1000, f"{folder}/late"
        for name, value in settings.items():
            setattr(param, name, value)
        reduction = SlowTree(comm)
        reduction.delays = np.random.default_rng(comm.rank)
        self.exchange = ReducingExchange(reduction, 6000, overlap)
        self.action = Action.NONE
        self.solver = Solver(
            param,
            cpu_engine(),
            "counter",
            workers=MpiWorkers(comm),
            exchange=self.exchange,
            requested_action=self._requested,
        )
        self.observer = Waits(self.solver)
        self.solver.observers.append(self.observer)

    def _requested(self) -> Action:
        action, self.action = self.action, Action.NONE
        return action

    def run(self) -> list[np.ndarray]:
        """What a script could see on the way."""
        solver, seen = self.solver, []
        steps = np.random.default_rng(7)
        for _ in range(5):
            if steps.random() < 0.3 and solver.workers.rank == 1:
                self.action = Action.SNAPSHOT
            solver.step(int(steps.integers(1, 4)))
            seen += [solver.data.copy(), solver.diff.copy(), *(history.copy() for history in solver.history)]
            if steps.random() < 0.5:
                solver.test_all()
        solver.snapshot()
        seen.append(np.array(solver.smoothed.mean))
        solver.close()
        solver.leave_workers()
        return seen


def main(folder: str) -> None:
    log.set_minimum(3)
    Path(folder).mkdir(exist_ok=True)
    for settings in SETTINGS:
        expected = Training(folder, settings, overlap=False).run()
        training = Training(folder, settings, overlap=True)
        for ours, theirs in zip(training.run(), expected, strict=True):
            assert np.array_equal(ours, theirs), settings
        waits = "clip_gradients" in settings or "debug_info" in settings
        assert waits or training.observer.late > 2, (settings, training.observer.late)


main(*sys.argv[1:])
