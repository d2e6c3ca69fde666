"""A sum of gradients that fails while the training goes on: no gradient of it is used, and nothing is saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fcaffe.engines import cpu_engine
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Solver

MPI = pytest.importorskip("mpi4py.MPI", reason="needs the extra fcaffe[mpi]")

from fcaffe.parallel.exchange import ReducingExchange  # noqa: E402
from fcaffe.parallel.reductions import Reduction  # noqa: E402

LAYERS, LAST = 4, 6
NET = """layer { name: "x" type: "DummyData" top: "t0" dummy_data_param {
  shape { dim: 2 dim: 8 } data_filler { value: 1 } } }"""
for number in range(LAYERS):
    NET += f"""layer {{ name: "ip{number}" type: "InnerProduct" bottom: "t{number}" top: "t{number + 1}"
      inner_product_param {{ num_output: 8 bias_term: false weight_filler {{ type: "xavier" }} }} }}"""
NET += f'layer {{ name: "loss" type: "Reduction" bottom: "t{LAYERS}" top: "loss" loss_weight: 1 }}'
SOLVER = """base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 random_seed: 1 max_iter: %d snapshot: 2 test_interval: 3
test_iter: 1 snapshot_prefix: "run" net_param { %s }"""


class Failing(Reduction):
    """Doubles the buffers, but for one bucket of one iteration, whose sum fails."""

    fails_at: tuple[int, int] = (0, 0)  # iteration and bucket, counted as they are summed
    iteration, bucket = 0, 0

    def sum(self, buffer: np.ndarray) -> None:
        if self.bucket == LAYERS:
            self.iteration, self.bucket = self.iteration + 1, 0
        self.bucket += 1
        if (self.iteration, self.bucket - 1) == self.fails_at:
            raise RuntimeError("the network is gone")
        buffer *= 2


def trained(folder: Path, fails_at: tuple[int, int], overlap: bool) -> Solver:
    text = (SOLVER % (LAST, NET)).replace('"run"', f'"{folder}/run"')
    reduction = Failing(MPI.COMM_SELF)
    reduction.fails_at = fails_at
    exchange = ReducingExchange(reduction, bucket=4 * 64, overlap=overlap)
    solver = Solver(parse_text(text, pb.SolverParameter), cpu_engine(), exchange=exchange)
    try:
        if fails_at[0] < 0:
            solver.solve()
        else:
            with pytest.raises(RuntimeError, match="the network is gone"):
                solver.solve()
            with pytest.raises(RuntimeError, match="the network is gone"):
                solver.apply_update()
    finally:
        solver.close()
        exchange.close()
    return solver


@pytest.mark.parametrize("overlap", [True, False])
def test_no_failed_sum_is_used_or_saved(tmp_path: Path, overlap: bool) -> None:
    """Whichever bucket fails in whichever iteration: what was saved before is what a run without failure saves."""
    (tmp_path / "healthy").mkdir()
    trained(tmp_path / "healthy", (-1, 0), overlap)
    healthy = {path.name: path.read_bytes() for path in (tmp_path / "healthy").glob("*.caffemodel")}
    assert sorted(healthy) == [f"run_iter_{iteration}.caffemodel" for iteration in (2, 4, 6)]
    for iteration in range(LAST):
        for bucket in range(LAYERS):
            folder = tmp_path / f"{iteration}-{bucket}"
            folder.mkdir()
            trained(folder, (iteration, bucket), overlap)
            saved = {path.name: path.read_bytes() for path in folder.glob("*.caffemodel")}
            assert saved == {name: healthy[name] for name in sorted(healthy)[: iteration // 2]}, folder.name
