"""Whole trainings against those that Caffe ran from the same weights on the same images."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fcaffe.engines.base import Pending
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Solver
from tests.conftest import GOLDEN
from tests.engine_choice import host
from tests.watching import watch

# In AdaGrad_l1 a weight comes to lie within 1e-8 of zero after 17 steps. Its sign, which L1 decay goes by, then hangs
# on one rounding in the BLAS, and AdaGrad makes a step of 0.01 of it: from there on only the course is the same.
LOOSE = {"AdaGrad_l1": 5e-2}

CASES = sorted((GOLDEN / "solvers").glob("*_*.npz"))
MEMORY_DATA = "memory_data_param { batch_size: 16 channels: 1 height: 14 width: 14 }"


def golden_solver(case: np.lib.npyio.NpzFile, solver_from: Callable[..., Solver]) -> Solver:
    """The case's solver with its starting weights, its images given from memory in place of HDF5."""
    net = re.sub(r"hdf5_data_param \{.*\}", MEMORY_DATA, str(case["net"])).replace('"HDF5Data"', '"MemoryData"')
    param = parse_text(str(case["solver"]), pb.SolverParameter)
    param.ClearField("net")
    param.net_param.CopyFrom(parse_text(net, pb.NetParameter))
    solver = solver_from(str(param))
    images = np.load(GOLDEN / "solvers" / "train.npz")
    solver.net.layers[0].reset(images["data"], images["label"])
    start = np.load(GOLDEN / "solvers" / "init.npz")
    for node in solver.net.nodes:
        for index, blob in enumerate(node.layer.blobs):
            blob.data[...] = blob.xp.asarray(start[f"init_{node.name}_{index}"])
    return solver


def parameters(solver: Solver, which: str = "data") -> dict[str, np.ndarray]:
    return {
        f"{node.name}_{index}": host(getattr(blob, which))
        for node in solver.net.nodes
        for index, blob in enumerate(node.layer.blobs)
    }


def assert_close(ours: np.ndarray, theirs: np.ndarray, tolerance: float, what: str) -> None:
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max(), what


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_training_is_caffes(path, solver_from: Callable[..., Solver]) -> None:
    case = np.load(path)
    solver = golden_solver(case, solver_from)
    tolerance = LOOSE.get(path.stem, 1e-5)
    losses: list[float] = []
    first_gradients: dict[str, np.ndarray] = {}
    start_forward = solver.net.start_forward

    def recorded(**how: Any) -> Pending:
        pending = start_forward(**how)
        losses.append(pending.value())
        return pending

    solver.net.start_forward = recorded  # type: ignore[method-assign]
    watch(solver, gradients_ready=lambda: first_gradients or first_gradients.update(parameters(solver, "diff")))
    solver.step(1)
    for name, values in first_gradients.items():
        assert_close(values, case[f"grad1_{name}"], 1e-5, f"gradient of {name}")
    for name, values in parameters(solver).items():
        assert_close(values, case[f"after1_{name}"], 1e-5, f"{name} after one step")
    solver.step(int(case["iters"]) - 1)
    np.testing.assert_allclose(losses, case["forward_loss"].reshape(-1), rtol=tolerance)
    for name, values in parameters(solver).items():
        assert_close(values, case[f"final_{name}"], tolerance, f"{name} at the end")
    index = 0
    for history in solver.history:
        for place in solver.net.parameters.slices:
            assert_close(host(history[place]), case[f"history_{index}"].reshape(-1), tolerance, f"history {index}")
            index += 1
    assert solver.current_step == int(case["current_step"])
