"""Values derived from weights: each change of weights counts in the next pass, and the memory of old values is free."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fcaffe as caffe
from fcaffe import log
from fcaffe.engines.memory import aligned_zeros
from fcaffe.engines.windows import Windows
from fcaffe.net import Blob, Context, Layer, Traits, registry
from fcaffe.net import Net as CoreNet
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.pycaffe import session
from tests import engine_choice

NEAR = 1e-5  # of the largest value
PASSES = 4  # by the last, values are derived and calls recorded
BUSY = 20e6  # bytes: what the memory of a process may vary by

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 8 dim: 10 dim: 10 } } }'
LAYERS = """
layer { name: "a" type: "Convolution" bottom: "x" top: "a" convolution_param {
  num_output: 8 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "a" top: "a" }
layer { name: "scale" type: "Scale" bottom: "a" top: "a" scale_param { bias_term: true } }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "x" top: "sum" }
layer { name: "relu" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "b" type: "Convolution" bottom: "sum" top: "b" convolution_param {
  num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "c" type: "Deconvolution" bottom: "b" top: "c" convolution_param {
  num_output: 8 kernel_size: 2 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "y" type: "InnerProduct" bottom: "c" top: "y" inner_product_param {
  num_output: 6 weight_filler { type: "xavier" } } }
"""
LOSS = """
layer { name: "t" type: "DummyData" top: "t" dummy_data_param { shape { dim: 2 dim: 6 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
"""
SOLVER = 'base_lr: 1e-5 lr_policy: "fixed" momentum: 0.9 type: "SGD" max_iter: 99 test_iter: 1 test_interval: 99 '
SOLVER += "test_initialization: false snapshot_after_train: false "
NET = "net_param { %s }" % (INPUT + LAYERS + LOSS)


@pytest.fixture
def one_engine(on_each_engine: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    log.set_minimum(1)
    made = engine_choice.engine()
    monkeypatch.setattr(session, "engine", lambda: made)
    yield


def net_of(text: str, phase: int = caffe.TEST, inference: bool = False) -> Any:
    """A script's net, or one `for inference` as the command line has it, with statistics as they might be."""
    caffe.set_random_seed(1)
    if inference:
        param = parse_text(text, pb.NetParameter)
        param.state.phase = phase
        context = Context(session.engine(), session.random, inference=True, whole_passes=True)
        net = caffe.Net._of(CoreNet(param, context))
    else:
        net = caffe.Net(text, phase)
    vary(net)
    net.blobs["x"].data[...] = np.random.default_rng(1).standard_normal(net.blobs["x"].shape)
    return net


def vary(net: Any, seed: int = 2) -> None:
    random = np.random.default_rng(seed)
    for name, blobs in net.params.items():
        for index, blob in enumerate(blobs):
            far = name == "norm" and index
            blob.data[...] = random.uniform(1, 2, blob.shape) if far else random.normal(0.1, 0.3, blob.shape)


class Changes:
    """Ways to change the weights of a net. Each is called several times and yields where a pass follows."""

    def __init__(self, net: Any, folder: Path) -> None:
        self.net, self.folder = net, folder
        self.other = net_of(INPUT + LAYERS)
        vary(self.other, 3)

    def load(self) -> Iterator[None]:
        for seed in range(10, 13):
            vary(self.other, seed)
            self.other.save(str(self.folder / "other.caffemodel"))
            self.net.copy_from(str(self.folder / "other.caffemodel"))
            yield

    def share(self) -> Iterator[None]:
        self.net.share_with(self.other)
        yield

    def the_sharing_net_loads(self) -> Iterator[None]:
        self.other.save(str(self.folder / "other.caffemodel"))
        vary(self.net, 5)
        yield
        self.other.share_with(self.net)
        self.other.copy_from(str(self.folder / "other.caffemodel"))
        yield

    def statistics_of_a_training_net(self) -> Iterator[None]:
        trained = net_of(INPUT + LAYERS, caffe.TRAIN)
        self.net.share_with(trained)
        for _ in range(3):
            trained.forward()
            yield

    def write(self) -> Iterator[None]:
        for name in self.net.params:
            for index in range(len(self.net.params[name])):
                self.net.params[name][index].data[...] *= 1.5
                yield

    def write_held(self) -> Iterator[None]:
        for name in "a", "norm", "scale", "y":
            held = self.net.params[name][0].data
            for _ in range(2):
                yield
                held *= 1.2
                yield
            held *= 1.2
            del held
            yield

    def write_a_held_view(self) -> Iterator[None]:
        row = self.net.params["a"][0].data.reshape(-1)[3:50]
        for _ in range(5):
            row += 0.5
            yield

    def reshape(self) -> Iterator[None]:
        for name in "a", "b", "c", "y":
            blob = self.net.params[name][0]
            shape = tuple(blob.shape)
            blob.reshape(*shape[::-1])
            blob.data[...] = np.random.default_rng(3).standard_normal(blob.shape)
            blob.reshape(*shape)
            yield

    def reshape_the_input(self) -> Iterator[None]:
        for batch in 3, 1, 2:
            self.net.blobs["x"].reshape(batch, 8, 10, 10)
            self.net.blobs["x"].data[...] = np.random.default_rng(batch).standard_normal((batch, 8, 10, 10))
            self.net.params["a"][0].data[...] *= 2
            yield

    def move(self) -> Iterator[None]:
        core = self.net._net
        for _ in range(2):
            data, diff = (aligned_zeros(np, core.parameters.extent) for _ in range(2))
            core.parameters.flatten(data, diff)
            yield
            self.net.params["b"][0].data[...] *= 2
            yield

    def update_and_restore(self) -> Iterator[None]:
        prefix = f'snapshot_prefix: "{self.folder / "snap"}"'
        solver = caffe.get_solver(SOLVER + prefix + NET)
        solver.net.blobs["x"].data[...] = self.net.blobs["x"].data
        self.net.share_with(solver.net)
        solver.snapshot()
        solver.step(1)
        yield
        solver.restore(str(self.folder / "snap_iter_0.solverstate"))
        yield
        solver.net.forward()
        solver.net.backward()
        solver.apply_update()
        yield


WAYS = [name for name in vars(Changes) if not name.startswith("_")]


@pytest.mark.usefixtures("one_engine")
@pytest.mark.parametrize("inference", [False, True], ids=["script", "inference"])
@pytest.mark.parametrize("way", WAYS)
def test_the_next_pass_has_the_changed_weights(tmp_path: Path, way: str, inference: bool) -> None:
    """It equals that of a fresh net with these weights."""
    net = net_of(INPUT + LAYERS, inference=inference)
    for _ in range(PASSES):
        before = net.forward()["y"].copy()
    changed = []
    for number, _ in enumerate(getattr(Changes(net, tmp_path), way)()):
        shape = net.blobs["x"].shape
        fresh = net_of((INPUT + LAYERS).replace("dim: 2", f"dim: {shape[0]}", 1))
        net.save(str(tmp_path / "now.caffemodel"))
        fresh.copy_from(str(tmp_path / "now.caffemodel"))
        fresh.blobs["x"].data[...] = net.blobs["x"].data
        expected = fresh.forward()["y"]
        for later in range(1 if way == "write_held" else PASSES):
            found = net.forward()["y"].copy()
            assert np.abs(found - expected).max() <= NEAR * np.abs(expected).max(), f"change {number}, pass {later}"
        same = found.shape == before.shape and np.abs(found - before).max() <= 10 * NEAR * np.abs(expected).max()
        changed.append(not same)
        before = found
    assert sum(changed) >= len(changed) / 2


class Scaled(Layer):
    """A plugin's layer: a convolution whose weights are scaled by the second bottom, in their own memory or another."""

    traits = Traits(bottoms=2, tops=1, reshapes_by_shape=True)
    windows = Windows((3, 3), (1, 1), (1, 1), (1, 1))
    in_place = False

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.add_blob(32, 32, 3, 3)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        weights = self.blobs[0].data
        if self.in_place:
            weights[...] = bottom[1].data
        else:
            weights = np.ones_like(weights) * bottom[1].data
        self.engine.convolution_forward(bottom[0].data, weights, None, top[0].data, self.windows, 1)


@pytest.mark.usefixtures("one_engine")
@pytest.mark.parametrize("in_place", [False, True])
def test_a_plugin_computes_its_weights_anew(monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    monkeypatch.setitem(registry._registry, "Scaled", Scaled)
    monkeypatch.setattr(Scaled, "in_place", in_place)
    x, s = (f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ %s }} }}' for name in "xs")
    x, s = x % "shape { dim: 2 dim: 32 dim: 9 dim: 9 }", s % "shape { dim: 1 }"
    net = caffe.Net(x + s + 'layer { name: "y" type: "Scaled" bottom: "x" bottom: "s" top: "y" }', caffe.TEST)
    net.blobs["x"].data[...] = np.random.default_rng(1).standard_normal((2, 32, 9, 9))
    found = []
    for scale in range(1, 7):
        net.blobs["s"].data[...] = scale
        found.append(net.forward()["y"] / scale)
    for later in found[1:]:
        np.testing.assert_allclose(later, found[0], rtol=0, atol=1e-4)


BLOCK = """
layer {{ name: "c{to}" type: "Convolution" bottom: "x{of}" top: "c{to}" convolution_param {{
  num_output: 128 kernel_size: 3 pad: 1 weight_filler {{ type: "constant" value: 0.01 }} }} }}
layer {{ name: "n{to}" type: "BatchNorm" bottom: "c{to}" top: "n{to}" }}
layer {{ name: "r{to}" type: "ReLU" bottom: "n{to}" top: "x{to}" }}
"""
WIDE = 'layer { name: "x0" type: "Input" top: "x0" input_param { shape { dim: 1 dim: 128 dim: 8 dim: 8 } } }'
WIDE += "".join(BLOCK.format(of=i, to=i + 1) for i in range(8))


def resident() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def loads(net: Any) -> None:
    other = caffe.Net(WIDE, caffe.TEST)
    for _ in range(3):
        other.forward()
    del other
    gc.collect()  # a net is part of reference cycles


def reads_of_all_blobs(net: Any) -> None:
    net.forward()
    for blob in net.blobs.values():
        blob.data.sum()


def changes_of_weights(net: Any) -> None:
    net.params["c1"][0].data[...] *= 1.01
    for _ in range(2):
        net.forward()


@pytest.mark.parametrize("work", [loads, reads_of_all_blobs, changes_of_weights])
def test_memory_stays(work: Callable[[Any], None]) -> None:
    """Of a net of 4.7 MB of weights, on the engine that pycaffe keeps for the process."""
    log.set_minimum(1)
    net = caffe.Net(WIDE, caffe.TEST)
    for _ in range(3):
        work(net)
    before = resident()
    for _ in range(15):
        work(net)
    assert resident() - before < BUSY  # 15 nets have 70e6 bytes of weights
