"""The tests of training that are for GPUs, on the stand-ins: so that they are right before they meet one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fcaffe.engines import Engine
from tests.conftest import GOLDEN
from tests.engine_choice import host
from tests.gpu.test_gpu_training import (  # noqa: F401
    test_a_second_solver_has_graphs_of_its_own,
    test_batches_arrive_whole_and_in_order,
    test_batches_of_another_size,
    test_dropout_masks_are_the_cpus,
    test_graphs_change_no_bit,
    test_losses_are_the_cpus,
    test_out_of_memory_says_what_would_fit,
    test_recomputing_changes_no_bit,
    test_resumed_run_has_the_same_bits,
    test_snapshots_go_to_the_cpu_and_back,
    test_two_runs_have_the_same_bits,
)
from tests.gpu.training import lenet_solver
from tests.solvers.test_golden_run import mnist  # noqa: F401
from tests.watching import watch


@pytest.fixture
def gpu_engine(cuda_engine: Callable[..., Engine]) -> Callable[..., Any]:
    return cuda_engine


@pytest.mark.usefixtures("mnist")
def test_lenet_begins_as_caffes(gpu_engine: Callable[..., Engine]) -> None:
    """The whole run takes too long here; graphs are there after two iterations."""
    solver = lenet_solver(gpu_engine())
    solver.param.display = solver.param.test_interval = 0
    expected = np.load(GOLDEN / "runs" / "lenet" / "exact.npz")["loss"][:8]
    found: list[float] = []
    watch(solver, gradients_ready=lambda: found.append(float(host(solver.net.blob("loss").data))))
    solver.step(8)
    solver.close()
    assert found == pytest.approx(expected, rel=1e-5)
