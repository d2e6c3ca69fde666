"""What a script has called while a net runs, in what order, and what it sees and changes there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fcaffe as caffe
from fcaffe.errors import CallError, UsageError

NET = """
layer { name: "data" type: "DummyData" top: "x" top: "t" dummy_data_param {
  shape { dim: 2 dim: 3 dim: 6 dim: 5 } shape { dim: 2 dim: 3 } data_filler { type: "gaussian" } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
        inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "t" top: "loss" }
"""
SOLVER = 'net: "{net}" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 max_iter: 4 random_seed: 5 display: 2'


@pytest.fixture
def solver(tmp_path: Path) -> caffe.SGDSolver:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER.format(net=tmp_path / "net.prototxt"))
    return caffe.SGDSolver(str(tmp_path / "solver.prototxt"))


def test_each_layer_has_its_calls_in_order(solver: caffe.SGDSolver) -> None:
    calls: list[tuple[str, int]] = []
    net = solver.net
    for when in ("before_forward", "after_forward", "before_backward", "after_backward"):
        getattr(net, when)(lambda layer, when=when: calls.append((when, layer)))
    net.before_forward(lambda layer: calls.append(("second", layer)))
    solver.add_callback(lambda: calls.append(("start", -1)), lambda: calls.append(("ready", -1)))
    forward = [
        (when, layer) for layer in range(5) for when in ("before_forward", "second", "after_forward")
    ]  # backward also has the layers that do nothing there
    backward = [(when, layer) for layer in range(4, -1, -1) for when in ("before_backward", "after_backward")]
    solver.step(2)
    assert calls == [("start", -1), *forward, *backward, ("ready", -1)] * 2
    calls.clear()
    net.forward(start="relu", end="ip")
    net._backward(3, 3)
    assert calls == [*forward[6:12], *backward[2:4]]


def test_a_hook_sees_what_the_layer_has_made_and_the_next_one_reads_what_it_writes(solver: caffe.SGDSolver) -> None:
    net = solver.net
    conv, gradient = net.blobs["conv"].data, net.blobs["ip"].diff
    seen: list[float] = []

    def after(layer: int) -> None:
        if layer == 1:
            seen.append(float(conv.min()))  # an array that was taken before
            net.blobs["conv"].data[...] = 2
        elif layer == 2:
            seen.append(float(conv.max()))

    def behind(layer: int) -> None:
        if layer == 4:
            gradient[...] = 1

    net.after_forward(after)
    net.after_backward(behind)
    net.forward()
    assert seen[0] < 0 and seen[1] == 2, "ReLU has not run when Convolution's hook is called"
    weights, bias = (blob.data for blob in net.params["ip"])
    np.testing.assert_allclose(net.blobs["ip"].data, np.full((2, 48), 2) @ weights.T + bias, rtol=1e-5)
    net.clear_param_diffs()
    net.backward()
    assert net.params["ip"][1].diff.tolist() == [2, 2, 2]


def test_an_error_in_a_hook_comes_through_as_it_is(solver: caffe.SGDSolver) -> None:
    net = solver.net

    def wrong(layer: int) -> None:
        raise KeyError("mine")

    net.after_forward(wrong)
    with pytest.raises(KeyError, match="mine"):
        net.forward()
    with pytest.raises(CallError, match="called with the index of a layer, which 3 cannot be"):
        net.before_forward(3)
    with pytest.raises(CallError, match="add_callback takes two functions"):
        solver.add_callback(lambda: None)


def test_a_script_for_several_gpus_trains_as_one_process(solver: caffe.SGDSolver, tmp_path: Path) -> None:
    """In the order of Caffe's own train.py."""
    assert caffe.has_nccl()
    uid = caffe.NCCL.new_uid()
    assert isinstance(uid, bytes) and uid != caffe.NCCL.new_uid()
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    caffe.set_multiprocess(True)
    shared = caffe.SGDSolver(str(tmp_path / "solver.prototxt"))
    nccl = caffe.NCCL(shared, uid)
    nccl.bcast()
    times = [caffe.Timer() for _ in shared.net.layers]
    shared.net.before_forward(lambda layer: times[layer].start())
    shared.net.after_forward(lambda layer: times[layer].stop())
    shared.add_callback(nccl)
    shared.net.after_backward(nccl)
    for one in (solver, shared):
        caffe.set_random_seed(5)
        one.step(one.param.max_iter)
    assert np.array_equal(shared.net.params["ip"][0].data, solver.net.params["ip"][0].data)
    assert all(timer.ms > 0 for timer in times)
    caffe.set_solver_count(2)
    with pytest.raises(UsageError, match=r"set_solver_count\(2\).*fcaffe train"):
        caffe.NCCL(shared, uid)
    caffe.set_solver_count(1)
