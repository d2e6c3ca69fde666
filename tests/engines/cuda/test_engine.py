"""The GPU engine as a whole on its stand-ins: training that follows the CPU's, in CUDA graphs and without waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fcaffe.engines import Engine, NumpyEngine
from fcaffe.engines.cuda.engine import CudaEngine
from fcaffe.errors import NetError, SolverError
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Solver
from tests.engine_choice import host
from tests.engines.cuda import stand_in_cupy
from tests.watching import watch

NET = """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 12 dim: 12 } data_filler { type: "gaussian" std: 1 }
  shape { dim: 4 } data_filler { type: "constant" value: 2 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 8 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "norm" type: "LRN" bottom: "conv1" top: "norm" lrn_param { alpha: 0.01 } }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool" top: "conv2"
  convolution_param { num_output: 8 kernel_size: 3 pad: 1 bias_term: false weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv2" top: "conv2" }
layer { name: "scale" type: "Scale" bottom: "conv2" top: "conv2" scale_param { bias_term: true } }
layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }
layer { name: "sum" type: "Eltwise" bottom: "conv2" bottom: "pool" top: "sum" }
layer { name: "relu3" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "both" type: "Concat" bottom: "sum" bottom: "pool" top: "both" }
layer { name: "ip1" type: "InnerProduct" bottom: "both" top: "ip1"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "relu4" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "drop" type: "Dropout" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""
SOLVER = """
base_lr: 0.003 lr_policy: "step" gamma: 0.5 stepsize: 4 momentum: 0.9 weight_decay: 0.001 random_seed: 3 max_iter: 100
snapshot_after_train: false
"""
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-5, "bf16": 0.05, "fp16": 0.01}  # the stand-ins compute tf32 as fp32


def solver_on(engine: Engine, net: str = NET, **fields: Any) -> Solver:
    param = parse_text(SOLVER, pb.SolverParameter)
    for name, value in fields.items():
        setattr(param, name, value)
    param.net_param.CopyFrom(parse_text(net, pb.NetParameter))
    solver = Solver(param, engine, "counter")
    solver.nan_policy.on_nan = "stop"
    return solver


def train(solver: Solver, iterations: int = 8) -> list[float]:
    """The loss of each iteration."""
    losses: list[float] = []
    watch(solver, iteration_ends=lambda loss, _: losses.append(loss))
    solver.step(iterations)
    return losses


def weights(solver: Solver) -> list[np.ndarray]:
    return [host(parameter.blob.data) for parameter in solver.net.parameters.owned]


@pytest.mark.parametrize("math", TOLERANCE)
def test_training_follows_the_cpu(cuda_engine: Callable[..., CudaEngine], math: str) -> None:
    expected = train(solver_on(NumpyEngine()))
    solver = solver_on(cuda_engine(math=math))
    assert train(solver) == pytest.approx(expected, rel=TOLERANCE[math])
    owners = solver.engine.graphs._owners  # type: ignore[attr-defined]
    assert {name for owner in owners.values() for name in owner} == {"forward pass", "backward pass", "update"}
    assert all(recorded.graph for owner in owners.values() for recorded in owner.values())


def test_the_host_waits_for_nothing_but_losses(cuda_engine: Callable[..., CudaEngine]) -> None:
    solver = solver_on(cuda_engine())
    solver.step(4)
    with stand_in_cupy.watched() as (waits, uploads):
        solver.step(6)
    assert not [wait for wait in waits if not wait.startswith("event")], waits
    assert not uploads


LABELS = """
layer { name: "data" type: "DummyData" top: "both" dummy_data_param { shape { dim: 4 dim: 2 } } }
layer { name: "slice" type: "Slice" bottom: "both" top: "x" top: "label" slice_param { axis: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 5 } }
layer { name: "sigmoid" type: "Sigmoid" bottom: "ip" top: "sigmoid" }
layer { name: "ip2" type: "InnerProduct" bottom: "sigmoid" top: "ip2" inner_product_param { num_output: 5 } }
layer { name: "ip3" type: "InnerProduct" bottom: "ip2" top: "ip3" inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip3" bottom: "label" top: "loss" }
"""


def test_labels_keep_all_their_bits(cuda_engine: Callable[..., CudaEngine]) -> None:
    """And layers that know float32 only get that."""
    net = solver_on(cuda_engine(math="bf16"), LABELS).net
    narrow = {name for name, blob in zip(net.blob_names, net.blobs, strict=True) if blob.dtype != np.float32}
    assert narrow == {"ip2", "ip3"}


def test_a_restored_state_has_the_scale_of_the_loss(
    cuda_engine: Callable[..., CudaEngine], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how long ago it last changed; unless a scale is given, which stays."""
    monkeypatch.setattr("fcaffe.engines.cuda.update.PATIENCE", 3)
    straight = solver_on(cuda_engine(math="fp16"), snapshot_prefix=str(tmp_path / "state"))
    straight.step(4)
    state = straight.snapshot()
    resumed = solver_on(cuda_engine(math="fp16"), random_seed=5)
    resumed.restore(state)
    for solver in (straight, resumed):
        solver.step(2)
    kept = [solver.engine.state() for solver in (straight, resumed)]
    assert all(np.array_equal(kept[0][name], kept[1][name]) for name in kept[0])
    assert kept[0]["scales"][0] == 2.0**18, "it has been doubled after 3 updates and after 6"
    assert np.array_equal(host(straight.data), host(resumed.data))
    fixed = solver_on(cuda_engine(math="fp16", loss_scale=8.0))
    fixed.restore(state)
    assert fixed.engine.gradient_scale() == 8


def test_another_seed_is_another_noise(cuda_engine: Callable[..., CudaEngine]) -> None:
    """Also to a pass that was recorded."""
    found = []
    for graphs in (True, False):
        solver = solver_on(cuda_engine(graphs=graphs))
        solver.step(4)
        solver.context.seed += 1
        found.append(train(solver, 4))
    assert found[0] == found[1]


def test_parameters_lie_where_cudnn_may_read_16_bytes_at_once(cuda_engine: Callable[..., CudaEngine]) -> None:
    """Also behind BatchNorm's, of which one is a single value."""
    solver = solver_on(cuda_engine())
    solver.step(1)
    parameters = solver.net.parameters
    assert parameters.extent > parameters.count
    for parameter in parameters.owned:
        for array in (parameter.blob.data, parameter.blob.diff):
            assert array.data.ptr % 16 == 0, parameter.layer.name


def test_steps_whose_gradients_overflow_are_left_out(cuda_engine: Callable[..., CudaEngine]) -> None:
    engine = cuda_engine(math="fp16", loss_scale=2.0**40)
    solver = solver_on(engine)
    before = weights(solver)
    solver.step(1)
    assert int(engine.steps[1]) == 1
    assert all(np.array_equal(a, b) for a, b in zip(before[:1], weights(solver)[:1], strict=True))
    with pytest.raises(SolverError, match="fp16 scales gradients, and does not go with rates of each layer's own"):
        solver_on(cuda_engine(math="fp16"), local_lr_auto=True)


def test_a_loss_that_is_no_number_stops_at_its_iteration(cuda_engine: Callable[..., CudaEngine]) -> None:
    solver = solver_on(cuda_engine(), base_lr=1e30)
    with pytest.raises(SolverError, match=r"iteration [1-5]: loss = -?(nan|inf)"):
        solver.step(10)


@pytest.mark.parametrize("on_nan", ["stop", "continue"])
def test_a_label_that_is_no_class_is_named(cuda_engine: Callable[..., CudaEngine], on_nan: str) -> None:
    solver = solver_on(cuda_engine(), NET.replace("value: 2", "value: 7"))
    solver.nan_policy.on_nan = on_nan
    with pytest.raises(NetError, match=r'layer "loss" .*label 7 at position 0 .* none of the classes 0 to 4'):
        solver.step(3)


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "Accuracy"])
def test_a_label_that_is_no_class_is_named_in_a_test(cuda_engine: Callable[..., CudaEngine], kind: str) -> None:
    text = NET.replace("value: 2", "value: 7").replace("SoftmaxWithLoss", kind)
    net = parse_text(text, pb.NetParameter)
    net.state.phase = pb.TEST
    context = Context(cuda_engine(), CaffeRandom(1), inference=True, whole_passes=True)
    with pytest.raises(NetError, match=r'layer "loss" .*label 7 at position 0 .* none of the classes 0 to 4'):
        Net(net, context).forward()


def test_its_stream_stays_the_current_one(cuda_engine: Callable[..., CudaEngine]) -> None:
    engine = cuda_engine()
    xp = engine.xp
    xp.moveaxis(xp.zeros((2, 3, 4), np.float32), 0, -1).get()  # by a copy on the device, within a `with stream`
    assert xp.cuda.get_current_stream().ptr == engine.stream.ptr
    with xp.cuda.Stream(non_blocking=True):
        pass
    assert xp.cuda.get_current_stream().ptr == engine.stream.ptr


def test_work_that_waits_is_not_recorded(
    cuda_engine: Callable[..., CudaEngine], capfd: pytest.CaptureFixture[str]
) -> None:
    engine = cuda_engine()
    numbers = engine.xp.ones(3, np.float32)
    sums: list[float] = []
    for _ in range(5):
        engine.repeat(engine, "sum", 0, lambda: sums.append(float(numbers.sum())))
    assert sums == [3] * 5
    assert capfd.readouterr().err.count("No CUDA graph of the sum, it runs step by step") == 1


def test_a_pass_that_cannot_be_recorded_counts_once(
    cuda_engine: Callable[..., CudaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradients overwrite the last ones, though a part of it was tried before."""
    expected = train(solver_on(cuda_engine(graphs=False)), 5)
    engine = cuda_engine()
    solver = solver_on(engine)
    plain = engine.lrn_backward

    def waiting(*arguments: Any) -> None:
        plain(*arguments)
        float(engine.counters[0])

    monkeypatch.setattr(engine, "lrn_backward", waiting)
    assert train(solver, 5) == expected
    assert [works["backward pass"].refused for works in engine.graphs._owners.values() if len(works) > 1] == [True]  # type: ignore[union-attr]


def test_an_error_in_recorded_work_is_told(cuda_engine: Callable[..., CudaEngine]) -> None:
    engine, times = cuda_engine(), []

    def work() -> None:
        times.append(1)
        if len(times) == 3:
            raise NetError("broken")

    engine.repeat(engine, "work", 0, work)
    engine.repeat(engine, "work", 0, work)
    with pytest.raises(NetError, match="broken"):
        engine.repeat(engine, "work", 0, work)
    assert not engine.stream.is_capturing()
