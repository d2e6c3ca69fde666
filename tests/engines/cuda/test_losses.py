"""SoftmaxWithLoss on a device, whose host waits for nothing."""

import ml_dtypes
import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.errors import NetError
from tests import engine_choice
from tests.conftest import make_net
from tests.engines.cuda import stand_in_cupy
from tests.engines.cuda.emulated_engine import DeviceEngine, channels_last
from tests.engines.cuda.emulator import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler, reason="no g++ to emulate kernels with")

IGNORED = 2


def run(engine, scores, labels, probability, axis, ignored, divisor, dtype=np.float32, slope=0.7):
    loss, valid = np.full((), 9, np.float32), np.full((), 9, np.float32)
    dx = np.full_like(scores, 9, dtype=dtype)
    engine.softmax_loss_forward(scores, labels, probability, loss, valid, axis, ignored, divisor)
    slope = np.array(slope, np.float32)
    engine.softmax_loss_backward(probability, labels, dx, slope, valid, axis, ignored, divisor)
    return loss, valid, dx


def case(shape, axis, last):
    random = np.random.default_rng(4)
    scores = (3 * random.standard_normal(shape)).astype(np.float32)
    positions = (*shape[:axis], *shape[axis + 1 :])
    labels = random.integers(0, shape[axis], positions).astype(np.float32)
    return (channels_last(scores) if last else scores), labels


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_scores_of_16_bits_are_computed_with_in_float32(dtype):
    scores, labels = case((2, 21, 5, 3), 1, True)
    scores = scores.astype(dtype)
    as_float = scores.astype(np.float32)
    found, wanted = np.empty_like(as_float), np.empty_like(as_float)
    loss, _, dx = run(NumpyEngine(), scores, labels, found, 1, None, 4.0, dtype)
    wanted_loss, _, wanted_dx = run(NumpyEngine(), as_float, labels, wanted, 1, None, 4.0)
    np.testing.assert_allclose(loss, wanted_loss, rtol=3e-6)
    np.testing.assert_allclose(found, wanted, rtol=3e-6)
    assert dx.dtype == dtype
    np.testing.assert_allclose(dx.astype(np.float32), wanted_dx, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("label", [5, -1, 1e30, np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_label_that_is_no_class_makes_the_loss_no_number(label):
    scores, labels = case((6, 5), 1, False)
    labels[4] = label
    loss, _, _ = run(NumpyEngine(), scores, labels, np.empty_like(scores), 1, IGNORED, None)
    assert np.isnan(loss)


NET = """
layer { name: "in" type: "Input" top: "x" top: "label"
        input_param { shape { dim: 2 dim: 3 dim: 2 dim: 2 } shape { dim: 2 dim: 1 dim: 2 dim: 2 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "label" top: "loss" loss_param { ignore_label: 255 } }
layer { name: "right" type: "Accuracy" bottom: "x" bottom: "label" top: "right"
        accuracy_param { ignore_label: 255 top_k: 2 } }
"""


@pytest.fixture
def device_net(monkeypatch):
    stand_in_cupy.install(monkeypatch)
    monkeypatch.setattr(engine_choice, "chosen", DeviceEngine)
    yield make_net(NET, "TEST")
    stand_in_cupy.reset()


def run_net(net, scores, labels, forward):
    xp = net.context.engine.xp
    net.blob("x").data[...] = xp.asarray(scores)
    net.blob("label").data[...] = xp.asarray(labels)
    forward()
    return [float(net.blob(name).data) for name in ("loss", "right")]


def test_losses_and_accuracy_need_no_host(device_net, monkeypatch):
    random = np.random.default_rng(5)
    stream = device_net.context.engine.xp.cuda.Stream(non_blocking=True).use()
    nodes = [node for node in device_net.nodes if node.name in ("loss", "right")]
    for node in nodes:
        node.forward()
    stream.begin_capture()
    for node in nodes:
        assert not node.layer.traits.needs_host
        node.forward()
    graph = stream.end_capture()
    monkeypatch.setattr(engine_choice, "chosen", NumpyEngine)
    plain = make_net(NET, "TEST")
    for _ in range(3):
        scores = random.standard_normal((2, 3, 2, 2)).astype(np.float32)
        labels = random.choice(np.array([0, 1, 2, 255], np.float32), (2, 1, 2, 2))
        found = run_net(device_net, scores, labels, lambda: graph.launch(stream))
        np.testing.assert_allclose(found, run_net(plain, scores, labels, plain.forward), rtol=1e-6)


def test_what_is_no_number_is_explained(device_net):
    labels = np.zeros((2, 1, 2, 2), np.float32)
    labels[1, 0, 0, 1:] = labels[1, 0, 1] = 3
    scores = np.zeros((2, 3, 2, 2), np.float32)
    assert np.isnan(run_net(device_net, scores, labels, device_net.start_forward)).all()
    text = r'label 3 at position 5 of "label.*" .* is none of the classes 0 to 2'
    for run in device_net.explain, device_net.forward:
        with pytest.raises(NetError, match=f'layer "loss".*{text}'):
            run()
