"""pycaffe's solvers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fcaffe as caffe

NET = """
layer { name: "data" type: "MemoryData" top: "data" top: "label"
        memory_data_param { batch_size: 8 channels: 1 height: 4 width: 4 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = """
train_net: "{folder}/net.prototxt" test_net: "{folder}/net.prototxt" test_iter: 2 test_interval: 100
base_lr: 0.1 lr_policy: "step" gamma: 0.5 stepsize: 3 momentum: 0.9 max_iter: 6
test_initialization: false snapshot_prefix: "{folder}/snap" random_seed: 4
"""


@pytest.fixture
def solver(tmp_path: Path) -> caffe.SGDSolver:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER.format(folder=tmp_path))
    made = caffe.get_solver(str(tmp_path / "solver.prototxt"))
    random = np.random.default_rng(1)
    images, labels = random.standard_normal((16, 1, 4, 4)), random.integers(0, 3, 16)
    for net in (made.net, *made.test_nets):
        net.set_input_arrays(images.astype(np.float32), labels.astype(np.float32))
    return made


def test_step_trains(solver: caffe.SGDSolver) -> None:
    assert solver.iter == 0 and solver.lr == pytest.approx(0.1)
    weights = solver.net.params["ip"][0].data
    before = weights.copy()
    solver.step(1)
    first = float(solver.net.blobs["loss"].data)
    solver.step(3)
    assert solver.iter == 4 and solver.lr == pytest.approx(0.05)
    assert not np.array_equal(weights, before), "a live view"
    assert float(solver.net.blobs["loss"].data) < first


def test_snapshot_and_restore(solver: caffe.SGDSolver, tmp_path: Path) -> None:
    solver.step(2)
    solver.snapshot()
    kept = solver.net.params["ip"][0].data.copy()
    solver.step(2)
    solver.restore(str(tmp_path / "snap_iter_2.solverstate"))
    assert solver.iter == 2 and np.array_equal(solver.net.params["ip"][0].data, kept)


def test_test_nets_share_the_weights(solver: caffe.SGDSolver) -> None:
    test = solver.test_nets[0]
    solver.share_weights(test)
    solver.net.params["ip"][1].data[...] = 5
    assert np.all(test.params["ip"][1].data == 5)


@pytest.mark.parametrize("kind", ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"])
def test_each_class_is_its_rule_whatever_the_prototxts_type(kind: str, tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    momentum = "" if kind in ("AdaGrad", "RMSProp") else "momentum: 0.9"
    text = SOLVER.format(folder=tmp_path).replace("momentum: 0.9", f"{momentum} delta: 1e-6")
    own, other = tmp_path / "own.prototxt", tmp_path / "other.prototxt"
    own.write_text(f'{text} type: "{kind}" rms_decay: 0.9')
    other.write_text(f'{text} type: "{"SGD" if kind != "SGD" else "Nesterov"}" rms_decay: 0.9')
    random = np.random.default_rng(1)
    images, labels = random.standard_normal((8, 1, 4, 4)), random.integers(0, 3, 8)
    cls = getattr(caffe, f"{kind}Solver")
    weights = []
    for solver in (caffe.get_solver(str(own)), cls(str(other))):
        assert type(solver) is cls and isinstance(solver, caffe.SGDSolver)
        solver.net.set_input_arrays(images.astype(np.float32), labels.astype(np.float32))
        solver.step(3)
        weights.append(solver.net.params["ip"][0].data.copy())
    assert np.array_equal(*weights)


def test_a_script_may_move_the_end_which_has_a_snapshot(solver: caffe.SGDSolver, tmp_path: Path) -> None:
    solver.param.max_iter = 3
    solver.solve()
    assert solver.iter == 3 and (tmp_path / "snap_iter_3.caffemodel").exists()


def test_parameters_of_the_solver(solver: caffe.SGDSolver) -> None:
    param = solver.param
    assert (param.max_iter, param.display, param.layer_wise_reduce) == (6, 0, True)
    param.base_lr = 0.02
    assert param.base_lr == pytest.approx(0.02) and solver.lr == pytest.approx(0.02)
    before = solver.net.params["ip"][1].data.copy()
    solver.net.clear_param_diffs()
    solver.net.params["ip"][1].diff[...] = 1
    solver.apply_update()
    np.testing.assert_allclose(solver.net.params["ip"][1].data, before - 0.02, rtol=1e-6)
    assert solver.iter == 0
