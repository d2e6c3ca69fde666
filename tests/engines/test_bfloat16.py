"""Blobs of bfloat16 on CPUs: what --math bf16 computes is what float32 computes, to the digits that it keeps."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fcaffe.engines import cpu_engine, find_onednn
from fcaffe.engines.onednn.dnnl import AVX512_BF16
from fcaffe.net import Context, Net
from fcaffe.net.script.host_arrays import host_views
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_solver
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Solver
from tests import engine_choice
from tests.net.random_nets import RandomNet
from tests.net.test_random_nets import check, make


@pytest.fixture(scope="module")
def soft() -> Any:
    if not find_onednn():
        pytest.skip("needs onednn-cpu-gomp")
    if not cpu_engine(name="onednn").library.has(AVX512_BF16):
        pytest.skip("this processor has neither AVX-512 BF16 nor AMX: nothing of bfloat16 was checked")
    return cpu_engine("bf16", "onednn")


@pytest.fixture(scope="module")
def exact() -> Any:
    return cpu_engine(name="onednn")


def drawn(*shape: int, seed: int = 1) -> np.ndarray:
    """Channels-last."""
    values = np.random.default_rng([seed, *shape]).standard_normal((shape[0], *shape[2:], *shape[1:2]), np.float32)
    return np.moveaxis(values, -1, 1) if len(shape) > 1 else values


def narrow(engine: Any, values: np.ndarray) -> np.ndarray:
    rounded = np.empty_like(values, engine.half_dtype)
    engine.copy(values, rounded)
    return rounded


def rounded(engine: Any, values: np.ndarray) -> np.ndarray:
    """float32 values that bfloat16 has."""
    return engine.to_numpy(narrow(engine, values))


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [7, 10_000])  # by hand, and by all cores
def test_rounding_is_to_the_nearest_even_and_nan_stays(soft: Any, count: int) -> None:
    below, above = np.float32(1), np.float32(1 + 2**-7)
    given = np.float32([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.5, np.inf, 3.4e38, np.nan])
    wanted = np.float32([below, above + 2**-7, above, -3.5, np.inf, np.inf, np.nan])
    values = np.tile(given, -(-count // 7))[:count]
    np.testing.assert_array_equal(rounded(soft, values), np.tile(wanted, -(-count // 7))[:count])


def test_numpy_refuses_to_compute_with_it(soft: Any) -> None:
    values = narrow(soft, drawn(2, 3))
    for wrong in (lambda: values + 1, lambda: values > 0, values.sum, lambda: np.float32(1) * values):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError):
        drawn(2, 3)[...] = values


@pytest.mark.parametrize("channels", [1, 3, 64, 1000])
def test_sums_of_channels_of_any_number_of_rows(soft: Any, channels: int) -> None:
    for rows in [*range(1, 18), 797, 4096, 5003]:
        x = rounded(soft, drawn(1, channels, rows, 1, seed=rows))
        expected, size = (each.sum((0, 2, 3), np.float64) for each in (x, abs(x)))
        assert np.all(abs(soft.channel_sums(narrow(soft, x)) - expected) <= 1e-6 * size), rows


# --- nets -------------------------------------------------------------------------------------------------------------


def solver_on(engine: Any, text: str, **settings: Any) -> Solver:
    param = parse_text(
        'base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 random_seed: 3 max_iter: 99 snapshot_after_train: false '
        f"net_param {{ {text} }}",
        pb.SolverParameter,
    )
    upgrade_solver(param, "solver")
    return Solver(param, engine, "counter", **settings)


@pytest.mark.parametrize("seed", range(100, 110))
def test_random_nets(soft: Any, exact: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their gradients are near those of float32, in whole passes or layer by layer, and computed again."""
    text = RandomNet(seed).text

    def gradients(engine: Any, whole: bool, recompute: bool = False) -> np.ndarray:
        monkeypatch.setattr(engine_choice, "chosen", lambda: engine)
        solver = make(text, whole, recompute)
        solver.step(1)
        return solver.diff

    expected = gradients(exact, whole=False)
    for whole, recompute in ((False, False), (True, False), (True, True)):
        found = gradients(soft, whole, recompute)
        assert np.linalg.norm(found - expected) <= 0.05 * np.linalg.norm(expected)


@pytest.mark.parametrize("seed", range(100, 104))
def test_whole_passes_write_all_that_they_read(soft: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "chosen", lambda: soft)
    check(RandomNet(seed).text, within=0.1)


LENET = """
layer { name: "data" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 32 dim: 1 dim: 16 dim: 16 } shape { dim: 32 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 20 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2"
  convolution_param { num_output: 32 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv2" top: "norm" }
layer { name: "scale" type: "Scale" bottom: "norm" top: "norm" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "norm" top: "norm" }
layer { name: "ip1" type: "InnerProduct" bottom: "norm" top: "ip1"
  inner_product_param { num_output: 50 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy" }"""


def test_a_net_learns_the_same(soft: Any, exact: Any) -> None:
    """Pictures of five classes in noise; in less memory."""
    random = np.random.default_rng(1)
    classes = random.standard_normal((5, 1, 16, 16), np.float32)
    right, memory = [], []
    for engine in (exact, soft):
        solver, random = solver_on(engine, LENET, whole_passes=True), np.random.default_rng(2)
        accuracies = []
        for _ in range(20):
            labels = random.integers(0, 5, 32)
            solver.net.blob("data").data[...] = classes[labels] + 2 * random.standard_normal((32, 1, 16, 16))
            solver.net.blob("label").data[...] = labels
            solver.step(1)
            accuracies.append(float(solver.net.blob("accuracy").data))
        right.append(np.mean(accuracies[12:]))
        memory.append(solver.net.memory().peak)
        assert solver.data.dtype == solver.diff.dtype == np.float32
    assert right[0] > 0.9 and abs(right[0] - right[1]) < 0.02
    assert memory[1] < 0.62 * memory[0]


def test_scripts_see_float32(soft: Any) -> None:
    """Arrays that can be written, and that stay live, as of float32 blobs."""
    param = parse_text(LENET, pb.NetParameter)
    param.state.phase = pb.TRAIN
    net = Net(param, Context(soft, CaffeRandom(1)))
    views = host_views(soft)
    pool, ip, middle = net.blob("pool1"), net.blob("ip1"), net.layer_names.index("pool1")
    assert pool.dtype == ip.dtype == soft.half_dtype
    held = views.data(pool), views.data(ip), views.diff(ip)
    net.blob("data").data[...] = drawn(32, 1, 16, 16)
    with views.engine_at_work():
        net.forward(0, middle)
    assert held[0].dtype == np.float32 and held[0].flags.c_contiguous and held[0].any()
    written = drawn(32, 20, 6, 6)
    held[0][...] = written
    with views.engine_at_work():
        net.forward(middle + 1)
        net.backward()
    assert np.array_equal(held[0], rounded(soft, written)) and held[1].any() and held[2].any()
    again = views.data(ip).copy()
    assert np.array_equal(again, soft.to_numpy(ip.data))


def test_a_bad_value_is_found(soft: Any) -> None:
    solver = solver_on(soft, LENET, whole_passes=True)
    solver.net.blob("data").data[...] = drawn(32, 1, 16, 16)
    solver.net.layers[solver.net.layer_names.index("conv2")].blobs[0].data[3] = 3e38
    solver.net.forward()
    assert solver.net.first_bad_blob() == 'blob "conv2" (top of layer "conv2")'


def test_debug_info(soft: Any, capfd: pytest.CaptureFixture[str]) -> None:
    solver = solver_on(soft, LENET)
    solver.net.debug_info = True
    solver.net.blob("data").data[...] = drawn(32, 1, 16, 16)
    solver.net.forward()
    solver.net.backward()
    said = capfd.readouterr().err
    forward = re.search(r"\[Forward\] Layer pool1, top blob pool1 data: (\S+)", said)
    backward = re.search(r"\[Backward\] Layer conv2, bottom blob pool1 diff: (\S+)", said)
    assert forward and backward and 0.1 < float(forward[1]) < 10 and 0 < float(backward[1]) < 1
