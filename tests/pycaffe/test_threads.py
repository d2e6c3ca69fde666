"""Threads of a script, each with a net of its own: every net computes what it computes alone."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fcaffe as caffe

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 16 dim: 16 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
        convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2"
        convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "fc" type: "InnerProduct" bottom: "conv2" top: "fc"
        inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
THREADS = 4
PASSES = 40


@pytest.fixture
def nets(tmp_path: Path) -> list[caffe.Net]:
    file = tmp_path / "net.prototxt"
    file.write_text(NET)
    caffe.set_random_seed(1)
    return [caffe.Net(str(file), caffe.TEST) for _ in range(THREADS)]


@pytest.fixture
def restless() -> Iterator[None]:
    """Python changes from thread to thread as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def passes(net: caffe.Net, seed: int) -> list[list[np.ndarray]]:
    """What a script sees of passes with random images."""
    random = np.random.default_rng(seed)
    seen = []
    for _ in range(PASSES):
        net.blobs["data"].data[...] = random.standard_normal((2, 3, 16, 16))
        seen.append([net.forward()["prob"].copy(), net.blobs["conv2"].data.copy()])
    return seen


def test_an_input_that_a_thread_writes_amid_a_pass_of_another_net(nets: list[caffe.Net]) -> None:
    """And drops at once: what it has written counts in the next pass of its own."""
    net, other = nets[:2]
    image = np.random.default_rng(2).standard_normal((2, 3, 16, 16))
    expected = net.forward(data=image)["prob"].copy()
    net.forward(data=np.zeros(image.shape))
    array = net.blobs["data"].data
    with other._views.engine_at_work():
        array[...] = image
        del array
    np.testing.assert_array_equal(net.forward()["prob"], expected)


class FilledByThreads(caffe.Layer):
    """Its workers fill its top, and one of them runs a net meanwhile."""

    nets: list[caffe.Net] = []

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        self.workers = ThreadPoolExecutor(2)

    def reshape(self, bottom: list[Any], top: list[Any]) -> None:
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        def fill(index: int) -> None:
            top[0].data[index] = 2 * bottom[0].data[index]

        work = [self.workers.submit(fill, index) for index in range(len(bottom[0].data))]
        if net := self.nets.pop() if self.nets else None:
            work.append(self.workers.submit(net.forward))
        for each in work:
            each.result(timeout=60)
        if net:
            self.nets.append(net)

    def backward(self, top: list[Any], down: list[bool], bottom: list[Any]) -> None:
        pass


TWICE = """layer { name: "twice" type: "Python" bottom: "data" top: "twice"
        python_param { module: "tests.pycaffe.test_threads" layer: "FilledByThreads" } }
"""


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("waits", [False, True])
def test_nets_of_several_threads_do_not_disturb_one_another(waits: bool, tmp_path: Path) -> None:
    """Also with layers that wait for threads, whose calls are within one another in any order."""
    text = NET.replace('bottom: "data" top: "conv1"', 'bottom: "twice" top: "conv1"')
    file = tmp_path / "net.prototxt"
    file.write_text(text.replace('layer { name: "conv1"', TWICE + 'layer { name: "conv1"') if waits else NET)
    caffe.set_random_seed(1)
    nets = [caffe.Net(str(file), caffe.TEST) for _ in range(THREADS)]
    alone = [passes(net, seed) for seed, net in enumerate(nets)]
    FilledByThreads.nets[:] = [caffe.Net(str(file), caffe.TEST) for _ in range(3)]
    try:
        with ThreadPoolExecutor(THREADS) as threads:
            together = list(threads.map(passes, nets, range(THREADS), timeout=120))
    finally:
        FilledByThreads.nets.clear()
    for one, other in zip(alone, together, strict=True):
        assert len(other) == PASSES
        for arrays, others in zip(one, other, strict=True):
            for array, another in zip(arrays, others, strict=True):
                np.testing.assert_array_equal(array, another)


@pytest.mark.usefixtures("restless")
def test_gradients_given_by_keyword_amid_passes_of_another_net(tmp_path: Path) -> None:
    file = tmp_path / "net.prototxt"
    file.write_text(NET[: NET.index('layer { name: "fc"')] + "force_backward: true")
    net, other = (caffe.Net(str(file), caffe.TEST) for _ in range(2))
    shape = net.forward()["conv2"].shape
    random = np.random.default_rng(3)
    gradients = [random.standard_normal(shape).astype(np.float32) for _ in range(150)]
    expected = [net.backward(conv2=each)["data"].copy() for each in gradients]
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            other.forward()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for gradient, array in zip(gradients, expected, strict=True):
            np.testing.assert_array_equal(net.backward(conv2=gradient)["data"], array)
    finally:
        done.set()
        thread.join()


def test_reading_waits_for_a_training_but_not_in_its_callbacks(tmp_path: Path) -> None:
    text = NET.replace("2 dim: 3 dim: 16", "8 dim: 3 dim: 16") + (
        'layer { name: "loss" type: "Reduction" bottom: "prob" top: "loss" loss_weight: 1 }'
    )
    (tmp_path / "solver.prototxt").write_text(f'net_param {{ {text} }} base_lr: 0 lr_policy: "fixed" max_iter: 400')
    solver = caffe.get_solver(str(tmp_path / "solver.prototxt"))
    called, read = threading.Event(), threading.Event()
    waited = []

    def callback() -> None:
        if solver.iter == 2:
            called.set()
            waited.append(read.wait(20))

    solver.add_callback(callback, lambda: None)
    thread = threading.Thread(target=solver.step, args=(400,))
    thread.start()
    assert called.wait(20)
    assert solver.net.blobs["conv1"].data.shape == (8, 8, 14, 14)
    read.set()
    thread.join()
    assert waited == [True]
    solver = caffe.get_solver(str(tmp_path / "solver.prototxt"))
    thread = threading.Thread(target=solver.step, args=(400,))
    thread.start()
    while solver.iter == 0:
        time.sleep(0)
    assert solver.net.blobs["conv1"].data.size and solver.iter == 400
    thread.join()


class Giver(caffe.Layer):
    """Puts one item for each sample into a queue, in which there is room for one."""

    items: queue.Queue[float] = queue.Queue(1)

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        pass

    def reshape(self, bottom: list[Any], top: list[Any]) -> None:
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        top[0].data[...] = bottom[0].data
        for value in bottom[0].data:
            self.items.put(float(value.sum()), timeout=30)


class Taker(Giver):
    """Takes one item in each pass."""

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        top[0].data[...] = self.items.get(timeout=30)


def test_layers_of_two_nets_that_wait_for_each_other(tmp_path: Path) -> None:
    """One takes an item in each of its passes, the other gives four in one pass."""
    nets = []
    for name, images in ("Giver", 4), ("Taker", 1):
        file = tmp_path / f"{name}.prototxt"
        file.write_text(f"""
            layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: {images} dim: 2 }} }} }}
            layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param {{ num_output: 2
              weight_filler {{ type: "constant" value: 1 }} }} }}
            layer {{ name: "py" type: "Python" bottom: "ip" top: "py"
              python_param {{ module: "tests.pycaffe.test_threads" layer: "{name}" }} }}""")
        nets.append(caffe.Net(str(file), caffe.TEST))
    giver, taker = nets
    giver.blobs["x"].data[...] = np.arange(8).reshape(4, 2)
    with ThreadPoolExecutor(2) as threads:
        given = [threads.submit(giver.forward) for _ in range(3)]
        taken = [float(taker.forward()["py"][0, 0]) for _ in range(12)]
        for each in given:
            each.result(timeout=30)
    assert sorted(taken) == sorted([2.0, 10.0, 18.0, 26.0] * 3)
