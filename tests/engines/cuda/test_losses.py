"""SoftmaxWithLoss on a device, whose host waits for nothing."""

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from tests import engine_choice
from tests.conftest import make_net

NET = """
layer { name: "in" type: "Input" top: "x" top: "label"
        input_param { shape { dim: 2 dim: 3 dim: 2 dim: 2 } shape { dim: 2 dim: 1 dim: 2 dim: 2 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "label" top: "loss" loss_param { ignore_label: 255 } }
layer { name: "right" type: "Accuracy" bottom: "x" bottom: "label" top: "right"
        accuracy_param { ignore_label: 255 top_k: 2 } }
"""


@pytest.fixture
def device_net(cuda_engine, monkeypatch):
    monkeypatch.setattr(engine_choice, "chosen", cuda_engine)
    return make_net(NET, "TEST")


def run_net(net, scores, labels, forward):
    xp = net.context.engine.xp
    net.blob("x").data[...] = xp.asarray(scores)
    net.blob("label").data[...] = xp.asarray(labels)
    forward()
    return [float(net.blob(name).data) for name in ("loss", "right")]


def test_losses_and_accuracy_need_no_host(device_net, monkeypatch):
    random = np.random.default_rng(5)
    stream = device_net.context.engine.stream
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


@pytest.mark.parametrize("label", [5, -1, 1e30, np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_label_that_is_no_class_makes_the_loss_no_number(device_net, label):
    labels = np.zeros((2, 1, 2, 2), np.float32)
    labels[1, 0, 1, 0] = label
    assert np.isnan(run_net(device_net, np.zeros((2, 3, 2, 2), np.float32), labels, device_net.start_forward)[0])
