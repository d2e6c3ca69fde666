"""One rank of a training: `python -m mpi4py graph_ranks.py`. On a stand-in for a GPU it has the losses of the CPU, its
passes are CUDA graphs with NCCL's sums inside, also those of BatchNorms, and the host waits for losses only."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from fcaffe import log
from fcaffe.engines import Engine, NumpyEngine
from fcaffe.engines.cuda.engine import CudaEngine
from fcaffe.parallel import waiting
from fcaffe.parallel.exchange import ReducingExchange
from fcaffe.parallel.reductions import create_reduction
from fcaffe.parallel.workers import MpiWorkers
from fcaffe.solvers import Solver
from tests.engines.cuda import stand_in_cupy, stand_in_engine
from tests.gpu.training import losses, small_solver, weights

comm = MPI.COMM_WORLD


def solver_of(engine: Engine, reduction: Any) -> Solver:
    """Ranks have batches of unequal sizes."""
    exchange, workers = ReducingExchange(reduction), MpiWorkers(comm, per_worker=True, reduction=reduction)
    return small_solver(engine, batch=5 + comm.rank, workers=workers, exchange=exchange, sync_batch_norm=True)


def main() -> None:
    log.set_minimum(3)
    expected = solver_of(NumpyEngine(), create_reduction("mpi", comm))
    stand_in_engine.install(None)
    stand_in_cupy.runtime.DEVICES = comm.size
    stand_in_cupy.nccl.module.available = True
    engine = CudaEngine(comm.rank)
    solver = solver_of(engine, create_reduction("nccl", comm, engine.xp))
    solver.step(4)
    sums = sum(call[0] == "allReduce" for call in stand_in_cupy.calls)
    with stand_in_cupy.watched() as (waits, uploads):
        solver.step(3)
    later = [call for call in stand_in_cupy.calls if call[0] == "allReduce"][sums:]
    assert not later, f"outside of graphs: {later}"
    assert not uploads and all(wait.startswith("event") for wait in waits), waits
    norms = sum(layer.type == "BatchNorm" for layer in solver.net.layers)
    buckets = len(solver.exchange.cut)
    recorded = [work for owner in engine.graphs._owners.values() for work in owner.values()]
    assert len(recorded) == 3 and all(work.graph and work.graph.launches for work in recorded)
    assert sums == 4 * norms + 3 * (norms + buckets), "the fourth forward and the third backward pass are recorded"
    expected.step(7)
    np.testing.assert_allclose(weights(solver), weights(expected), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(losses(solver, 2), losses(expected, 2), rtol=1e-4)


waiting.POLLS = 10  # more ranks than cores: what a rank waits for comes while it sleeps
main()
