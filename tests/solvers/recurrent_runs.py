"""Trainings whose every iteration depends on the one before, cut in two at any place: in one process, or on ranks.

`python -m mpi4py recurrent_runs.py SCHEME...` checks it on ranks, with gradients compressed by each scheme. The state
of each stays in SCHEME_iter_3.solverstate, its residuals in SCHEME<RANK>.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data import array_to_datum, write_lmdb
from fcaffe.engines import cpu_engine
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_solver
from fcaffe.solvers import Solver
from fcaffe.solvers.snapshot.files import paths
from tests.watching import watch

NET = """
net_param {{
  layer {{ name: "data" type: "Data" top: "data" top: "label"
          transform_param {{ scale: 0.01 crop_size: 3 mirror: true }}
          data_param {{ source: "lmdb" backend: LMDB batch_size: 6 }} }}
  layer {{ name: "noise" type: "DummyData" top: "noise" dummy_data_param {{
          data_filler {{ type: "gaussian" std: 0.1 }} shape {{ dim: 6 dim: 1 dim: 3 dim: 3 }} }} }}
  layer {{ name: "cont" type: "DummyData" top: "cont" dummy_data_param {{
          data_filler {{ type: "constant" value: 1 }} shape {{ dim: 3 dim: 2 }} }} }}
  layer {{ name: "sum" type: "Eltwise" bottom: "data" bottom: "noise" top: "sum" }}
  layer {{ name: "steps" type: "Reshape" bottom: "sum" top: "steps"
          reshape_param {{ shape {{ dim: 3 dim: 2 dim: 9 }} }} }}
  layer {{ name: "rnn" type: "{kind}" bottom: "steps" bottom: "cont" top: "rnn" recurrent_param {{ num_output: 5
          weight_filler {{ type: "uniform" min: -0.5 max: 0.5 }} bias_filler {{ type: "constant" }} }} }}
  layer {{ name: "norm" type: "BatchNorm" bottom: "rnn" top: "norm" }}
  layer {{ name: "drop" type: "Dropout" bottom: "norm" top: "drop" dropout_param {{ dropout_ratio: 0.3 }} }}
  layer {{ name: "ip" type: "InnerProduct" bottom: "drop" top: "ip"
          inner_product_param {{ num_output: 4 axis: 2 weight_filler {{ type: "xavier" }} }} }}
  layer {{ name: "flat" type: "Reshape" bottom: "ip" top: "flat" reshape_param {{ shape {{ dim: 6 dim: 4 }} }} }}
  layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "flat" bottom: "label" top: "loss" }}
}}
base_lr: 0.1 lr_policy: "multistep" stepvalue: 3 stepvalue: 7 gamma: 0.5 momentum: {momentum} weight_decay: 0.001
snapshot_after_train: false test_initialization: false
"""


def write_records(folder: Path) -> None:
    """Eleven pictures, so that a batch of 6 begins elsewhere in each round."""
    pixels = np.random.default_rng(3).integers(0, 256, (11, 1, 4, 4), np.uint8)
    records = (array_to_datum(image, index % 4).SerializeToString() for index, image in enumerate(pixels))
    write_lmdb(str(folder / "lmdb"), ((b"%04d" % index, record) for index, record in enumerate(records)))


def solver_of(text: str, noise: str = "counter", math: str = "fp32", **more: Any) -> Solver:
    param = parse_text(text, pb.SolverParameter)
    upgrade_solver(param, "solver")
    return Solver(param, cpu_engine(math), noise, **more)


class Trained:
    """What a training came to: smoothed losses by iteration, what tests gave, weights and history."""

    def __init__(self, solver: Solver, iterations: int) -> None:
        self.losses: dict[int, float] = {}
        watch(solver, iteration_ends=lambda loss, _: self.losses.update({solver.iteration: loss}))
        solver.step(iterations)
        self.arrays = [solver.data.copy(), *(history.copy() for history in solver.history)]
        for net in (solver.net, *solver.test_nets):
            self.arrays += [blob.data.copy() for _, blob, _ in net.outputs()]
        solver.close()

    def assert_is_the_end_of(self, straight: Trained, cut: int, what: str = "") -> None:
        assert self.losses == {number: loss for number, loss in straight.losses.items() if number > cut}, what
        for ours, theirs in zip(self.arrays, straight.arrays, strict=True):
            assert np.array_equal(ours, theirs), what


def main(*schemes: str) -> None:
    from mpi4py import MPI

    from fcaffe.parallel.compression import make_compression
    from fcaffe.parallel.exchange import ReducingExchange
    from fcaffe.parallel.workers import MpiWorkers

    comm = MPI.COMM_WORLD
    log.set_minimum(1 if comm.rank == 0 else 3)

    def solver(scheme: str) -> Solver:
        workers = MpiWorkers(comm, per_worker=True)
        exchange = ReducingExchange(make_compression(scheme, comm), bucket=200)
        text = f'{NET.format(kind="LSTM", momentum=0.9)} average_loss: 3 random_seed: 5 snapshot_prefix: "{name}"'
        return solver_of(text, "counter", workers=workers, exchange=exchange, sync_batch_norm=False)

    cut, end = 3, 7
    for scheme in schemes:
        name = scheme.partition(":")[0]
        first = solver(scheme)
        first.step(cut)
        first.snapshot()
        np.savez(f"{name}{comm.rank}", **first.exchange.state())
        first.close()
        straight = Trained(solver(scheme), end)
        resumed = solver(scheme)
        resumed.restore(paths(name, cut)[1])
        Trained(resumed, end - cut).assert_is_the_end_of(straight, cut, scheme)
        print(f"{name} went on")


if __name__ == "__main__":
    main(*sys.argv[1:])
