"""What scripts for pycaffe commonly do, by their idioms, against numbers computed without a net."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder of a script, in which `import caffe` finds fcaffe."""
    from fcaffe.as_caffe import provide_caffe

    before = set(sys.modules)
    provide_caffe()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("caffe", "spirals"):
            del sys.modules[name]


def write(file: str, text: str) -> str:
    Path(file).write_text(text)
    return file


CLASSIFIER = """
layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 1 dim: 3 dim: {size} dim: {size} }} }} }}
layer {{ name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
         convolution_param {{ num_output: 8 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }}
layer {{ name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param {{ kernel_size: 2 stride: 2 }} }}
{fc6}
layer {{ name: "relu6" type: "ReLU" bottom: "fc6" top: "fc6" }}
{fc7}
layer {{ name: "prob" type: "Softmax" bottom: "fc7" top: "prob" }}
"""
INNER_PRODUCT = """layer { name: "NAME" type: "InnerProduct" bottom: "BOTTOM" top: "TOP"
  inner_product_param { num_output: NUMBER weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }"""
CONVOLUTION = """layer { name: "NAME" type: "Convolution" bottom: "BOTTOM" top: "TOP"
  convolution_param { num_output: NUMBER kernel_size: SIZE } }"""


def layer(template: str, **words: object) -> str:
    for word, value in words.items():
        template = template.replace(word.upper(), str(value))
    return template


@pytest.mark.usefixtures("folder")
def test_net_surgery_makes_a_classifier_fully_convolutional() -> None:
    """Inner products cast into convolutions classify every place of a larger image in one pass."""
    import caffe

    caffe.set_random_seed(1)
    ip = {"fc6": ("pool1", 16), "fc7": ("fc6", 5)}
    small = {
        name: layer(INNER_PRODUCT, name=name, bottom=bottom, top=name, number=number)
        for name, (bottom, number) in ip.items()
    }
    large = {
        name: layer(CONVOLUTION, name=f"{name}-conv", bottom=bottom, top=name, number=number, size=3 if i == 0 else 1)
        for i, (name, (bottom, number)) in enumerate(ip.items())
    }
    net = caffe.Net(write("net.prototxt", CLASSIFIER.format(size=8, **small)), caffe.TEST)
    net.save("net.caffemodel")
    file = write("full.prototxt", CLASSIFIER.format(size=14, **large))
    full = caffe.Net(file, "net.caffemodel", caffe.TEST)  # by Caffe's older constructor, as in its example
    fc_params = {name: (net.params[name][0].data, net.params[name][1].data) for name in ip}
    conv_params = {name: (full.params[f"{name}-conv"][0].data, full.params[f"{name}-conv"][1].data) for name in ip}
    for name in ip:
        conv_params[name][0].flat = fc_params[name][0].flat
        conv_params[name][1][...] = fc_params[name][1]
    full.save("full.caffemodel")
    full = caffe.Net(file, caffe.TEST, weights="full.caffemodel")

    image = np.random.default_rng(2).standard_normal((3, 14, 14)).astype(np.float32)
    out = full.forward_all(data=np.asarray([image]))
    assert out["prob"].shape == (1, 5, 4, 4)
    for row, column in np.ndindex(4, 4):  # the stride of the net is 2
        window = image[:, 2 * row : 2 * row + 8, 2 * column : 2 * column + 8]
        expected = net.forward(data=window[np.newaxis])["prob"][0]
        np.testing.assert_allclose(out["prob"][0, :, row, column], expected, rtol=1e-4)


LEARNER = """
layer {{ name: "data" type: "MemoryData" top: "data" top: "label"
         memory_data_param {{ batch_size: 6 channels: 4 height: 1 width: 1 }} }}
layer {{ name: "hidden" type: "InnerProduct" bottom: "data" top: "hidden" param {{ lr_mult: 0 }} param {{ lr_mult: 0 }}
         inner_product_param {{ num_output: 5 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "tanh" type: "TanH" bottom: "hidden" top: "hidden" }}
layer {{ name: "{last}" type: "InnerProduct" bottom: "hidden" top: "score" param {{ lr_mult: 1 }} param {{ lr_mult: 2 }}
         inner_product_param {{ num_output: {classes} weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }}
"""
LEARNING = (
    'train_net: "tune.prototxt" base_lr: 0.5 lr_policy: "step" stepsize: 2 gamma: 0.1 momentum: 0.9 '
    "weight_decay: 0.01 max_iter: 100 snapshot_after_train: false"
)


def softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


@pytest.mark.usefixtures("folder")
def test_fine_tuning_a_new_last_layer() -> None:
    """The weights follow momentum, decay, multipliers and the policy, computed here in float64."""
    import caffe

    caffe.set_random_seed(3)
    caffe.set_mode_cpu()
    caffe.Net(write("old.prototxt", LEARNER.format(last="fc_old", classes=9)), caffe.TRAIN).save("old.caffemodel")
    write("tune.prototxt", LEARNER.format(last="fc_new", classes=3))
    solver = caffe.get_solver(write("solver.prototxt", LEARNING))
    fresh = solver.net.params["fc_new"][0].data.copy()
    solver.net.copy_from("old.caffemodel")
    old = caffe.Net("old.prototxt", "old.caffemodel", caffe.TEST)
    np.testing.assert_array_equal(solver.net.params["hidden"][0].data, old.params["hidden"][0].data)
    np.testing.assert_array_equal(solver.net.params["fc_new"][0].data, fresh)

    random = np.random.default_rng(4)
    images = random.standard_normal((6, 4, 1, 1)).astype(np.float32)
    labels = random.integers(0, 3, 6).astype(np.float32)
    solver.net.set_input_arrays(images, labels)
    weights, biases = (blob.data.astype(float) for blob in solver.net.params["hidden"])
    features = np.tanh(images.reshape(6, 4) @ weights.T + biases)
    w, b = fresh.astype(float), np.zeros(3)
    step_w, step_b = np.zeros_like(w), np.zeros_like(b)
    losses = []
    for iteration in range(4):
        rate = 0.5 * 0.1 ** (iteration // 2)
        probabilities = softmax(features @ w.T + b)
        losses.append(-np.log(probabilities[np.arange(6), labels.astype(int)]).mean())
        error = (probabilities - np.eye(3)[labels.astype(int)]) / 6
        step_w = 0.9 * step_w + rate * (error.T @ features + 0.01 * w)
        step_b = 0.9 * step_b + 2 * rate * (error.sum(axis=0) + 0.01 * b)
        w, b = w - step_w, b - step_b
        assert solver.lr == pytest.approx(rate)
        solver.step(1)
        assert float(solver.net.blobs["loss"].data) == pytest.approx(losses[-1], rel=1e-5)
    assert solver.iter == 4 and losses[-1] < losses[0]
    np.testing.assert_allclose(solver.net.params["fc_new"][0].data, w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(solver.net.params["fc_new"][1].data, b, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(solver.net.params["hidden"][0].data, old.params["hidden"][0].data)
    solver.param.base_lr = 0.25
    assert solver.lr == pytest.approx(0.25 * 0.01)


DREAMER = """
force_backward: true
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 12 dim: 12 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
        convolution_param { num_output: 6 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "sig" type: "Sigmoid" bottom: "conv1" top: "sig" }
layer { name: "pool" type: "Pooling" bottom: "sig" top: "pool" pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool" top: "conv2"
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "conv2" top: "prob" }
"""


@pytest.mark.usefixtures("folder")
def test_dreaming_climbs_the_gradient_of_a_layer() -> None:
    """`dst.diff[:] = dst.data; net.backward(start=end)` gives the gradient of half the sum of squares, at each size."""
    import caffe

    caffe.set_random_seed(5)
    net = caffe.Net(write("net.prototxt", DREAMER), caffe.TEST)
    random = np.random.default_rng(6)
    end = "conv2"
    src, dst = net.blobs["data"], net.blobs[end]

    def objective(image: np.ndarray) -> float:
        src.data[0] = image
        net.forward(end=end)
        return float((dst.data.astype(float) ** 2).sum()) / 2

    for height, width in ((12, 12), (16, 20), (10, 14)):  # octaves
        src.reshape(1, 3, height, width)
        image = random.uniform(-1, 1, (3, height, width)).astype(np.float32)
        direction = random.uniform(-1, 1, image.shape).astype(np.float32)
        before = objective(image)
        dst.diff[:] = dst.data
        net.backward(start=end)
        gradient = src.diff[0]
        assert gradient.shape == image.shape and net.blobs["prob"].diff.max() == 0
        slope = (objective(image + 0.01 * direction) - objective(image - 0.01 * direction)) / 0.02
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=2e-3, abs=2e-3)
        src.data[0] = image
        for _ in range(5):
            net.forward(end=end)
            dst.diff[:] = dst.data
            net.backward(start=end)
            src.data[:] += 0.05 / np.abs(src.diff[0]).mean() * src.diff[0]
        assert objective(src.data[0].copy()) > before


SPIRALS = '''
import caffe
import numpy as np
import json


class Spirals(caffe.Layer):
    """Batches of points on two spirals, in the order of a shuffle that each epoch draws."""

    def setup(self, bottom, top):
        params = json.loads(self.param_str)
        self.batch_size = params["batch_size"]
        if len(top) != 2:
            raise Exception("Spirals has two tops: data and label")
        angle = np.linspace(0.5, 4, 60)
        points = np.stack([angle * np.cos(angle), angle * np.sin(angle)], axis=1)
        self.points = np.concatenate([points, -points]).astype(np.float32)
        self.labels = np.repeat([0, 1], 60)
        self.random = np.random.RandomState(params["seed"])
        self.queue = []
        self.served = []

    def reshape(self, bottom, top):
        while len(self.queue) < self.batch_size:
            self.queue += list(self.random.permutation(len(self.labels)))
        top[0].reshape(self.batch_size, *self.points.shape[1:])
        top[1].reshape(self.batch_size)

    def forward(self, bottom, top):
        batch, self.queue = self.queue[: self.batch_size], self.queue[self.batch_size :]
        self.served += batch
        top[0].data[...] = self.points[batch]
        top[1].data[...] = self.labels[batch]

    def backward(self, top, propagate_down, bottom):
        pass
'''
SPIRAL_NET = """
layer { name: "spirals" type: "Python" top: "data" top: "label"
  python_param { module: "spirals" layer: "Spirals" param_str: '{ "batch_size": 48, "seed": 7 }' } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1"
  inner_product_param { num_output: 40 weight_filler { type: "gaussian" std: 1 } bias_filler { type: "uniform" } } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "score" type: "InnerProduct" bottom: "ip1" top: "score"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "score" bottom: "label" top: "accuracy" include { phase: TEST } }
"""


@pytest.mark.usefixtures("folder")
def test_a_python_data_layer_feeds_a_training() -> None:
    import caffe

    write("spirals.py", SPIRALS)
    write("net.prototxt", SPIRAL_NET)
    write(
        "solver.prototxt",
        'net: "net.prototxt" test_iter: 5 test_interval: 1000 test_initialization: false base_lr: 0.05 type: "Adam" '
        'lr_policy: "fixed" momentum: 0.9 max_iter: 150 random_seed: 8 snapshot_after_train: false',
    )
    solver = caffe.get_solver("solver.prototxt")
    assert isinstance(solver, caffe.AdamSolver) and isinstance(solver, caffe.SGDSolver)
    source = solver.net.layers[list(solver.net._layer_names).index("spirals")]
    solver.step(5)
    assert solver.net.blobs["data"].data.shape == (48, 2)
    assert sorted(source.served) == sorted([*range(120)] * 2), "two epochs, each point once in each"
    last = source.served[-48:]
    np.testing.assert_array_equal(solver.net.blobs["data"].data, source.points[last])
    np.testing.assert_array_equal(solver.net.blobs["label"].data, source.labels[last])
    solver.solve()
    test_net = solver.test_nets[0]
    test_net.share_with(solver.net)
    correct = [float(test_net.forward()["accuracy"]) for _ in range(5)]
    assert solver.iter == 150 and np.mean(correct) > 0.95
