"""One rank of a training: `python -m mpi4py train_ranks.py SOLVER ITERATIONS OUT [no-overlap]`.

Rank 0 saves the result.
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

from fcaffe import log
from fcaffe.engines import cpu_engine
from fcaffe.parallel import waiting
from fcaffe.parallel.exchange import ReducingExchange
from fcaffe.parallel.reductions.reduction import Mpi
from fcaffe.parallel.workers import MpiWorkers
from fcaffe.proto import read_solver
from fcaffe.solvers import Solver
from tests.watching import watch


def main(path: str, iterations: str, out: str, overlap: str = "overlap") -> None:
    comm = MPI.COMM_WORLD
    log.set_minimum(0 if comm.rank == 0 else 3)
    exchange = ReducingExchange(Mpi(comm), 10000, overlap == "overlap")
    solver = Solver(
        read_solver(path), cpu_engine(), "counter", workers=MpiWorkers(comm), exchange=exchange, sync_batch_norm=True
    )
    losses: list[float] = []
    watch(solver, iteration_ends=lambda loss, _: losses.append(loss))
    solver.step(int(iterations))
    solver.test_all()
    solver.snapshot()
    everyones = comm.gather(solver.data)
    if comm.rank == 0:
        assert all(np.array_equal(data, solver.data) for data in everyones), "all ranks have the same weights"
        np.savez(out, losses=losses, data=solver.data)
    solver.close()


waiting.POLLS = 10  # more ranks than cores: what a rank waits for comes while it sleeps
main(*sys.argv[1:])
