"""A forked process, such as multiprocessing starts on Linux, goes on where its parent was, whatever that was doing."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fcaffe as caffe
from fcaffe.data import array_to_datum, write_lmdb
from fcaffe.data.images import encode_image
from fcaffe.engines import NumpyEngine, cpu_engine
from fcaffe.net.script.engine_lock import engine_lock
from fcaffe.pycaffe import session
from tests.engine_choice import ENGINES

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="forks"), pytest.mark.usefixtures("all_threads")]

SECONDS = 60
PASSES = 2
LAYERS = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 32 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }
layer { name: "conv2" type: "Convolution" bottom: "bn" top: "conv2"
  convolution_param { num_output: 32 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "conv2" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc"
  inner_product_param { num_output: 40 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""
TRANSFORM = "transform_param { mirror: true crop_size: 24 scale: 0.01 }"
SOURCES = {
    "Data": f'{{ name: "in" type: "Data" {TRANSFORM} data_param {{ source: "db" backend: LMDB batch_size: 8 }} ',
    "ImageData": f'{{ name: "in" type: "ImageData" {TRANSFORM} '
    'image_data_param { source: "list" batch_size: 8 shuffle: true } ',
    "HDF5Data": '{ name: "in" type: "HDF5Data" hdf5_data_param { source: "h5" batch_size: 8 shuffle: true } ',
    "DummyData": '{ name: "in" type: "DummyData" dummy_data_param { shape { dim: 8 dim: 3 dim: 24 dim: 24 } '
    "shape { dim: 8 } data_filler { value: 0.5 } data_filler { value: 3 } } ",
}


# The engine's locks and threads are the same for all sources.
CASES = [*((ENGINES[0], source) for source in SOURCES), *((name, "Data") for name in ENGINES[1:])]


@pytest.fixture(params=CASES, ids="-".join)
def build(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Any]]:
    """build(): a training net of pictures, the same each time."""
    engine_name, source = request.param
    engine = cpu_engine(name=engine_name)
    monkeypatch.setattr(session, "engine", lambda: engine)
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(1).integers(0, 256, (50, 3, 28, 28), np.uint8)
    if source == "Data":
        write_lmdb("db", ((b"%04d" % i, array_to_datum(x, i % 40).SerializeToString()) for i, x in enumerate(pixels)))
    elif source == "ImageData":
        pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")
        for index, image in enumerate(pixels):
            Path(f"{index}.png").write_bytes(encode_image(image, "png"))
        Path("list").write_text("".join(f"{index}.png {index % 40}\n" for index in range(len(pixels))))
    elif source == "HDF5Data":
        h5py = pytest.importorskip("h5py", reason="h5py is not installed")
        with h5py.File("rows.h5", "w") as file:
            file["data"], file["label"] = pixels[:, :, 2:26, 2:26] / np.float32(255), np.arange(50) % 40
        Path("h5").write_text("rows.h5\n")
    Path("net.prototxt").write_text(f'layer {SOURCES[source]} top: "data" top: "label" }}' + LAYERS)

    def make() -> Any:
        caffe.set_random_seed(1)
        return caffe.Net("net.prototxt", caffe.TRAIN)

    yield make
    gc.collect()  # ends the reading threads


def passes(net: Any, count: int = PASSES) -> list[np.ndarray]:
    """The losses of passes, and the gradients of the first layer's weights."""
    found = []
    for _ in range(count):
        found.append(net.forward()["loss"].copy())
        net.clear_param_diffs()
        net.backward()
        found.append(net.params["conv"][0].diff.copy())
    return found


def in_fork(work: Callable[[], Any]) -> Any:
    """The result of `work` in a forked process, which has to end by itself."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: there are threads
        child = os.fork()
    if child == 0:
        try:
            result = work()
        except BaseException as problem:
            result = problem
        with open(writing, "wb") as file:
            pickle.dump(result, file)
        os._exit(0)
    os.close(writing)
    try:
        assert select.select([reading], [], [], SECONDS)[0], "the forked process hangs"
        with open(reading, "rb", closefd=False) as file:
            result = pickle.load(file)
        if isinstance(result, BaseException):
            raise result
        return result
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_before_and_after_passes(build: Callable[[], Any]) -> None:
    """Before there is a net, and while batches are read ahead: children, a grandchild and a thread's child go on."""
    early = in_fork(lambda: passes(build()))
    net = build()
    assert_same(early, passes(net))
    child, grandchild = in_fork(lambda: (passes(net), in_fork(lambda: passes(net))))
    with ThreadPoolExecutor(1) as pool:
        child_of_thread = pool.submit(in_fork, lambda: passes(net)).result()
    following = passes(net, 2 * PASSES)
    for found in (child, child_of_thread):
        assert_same(found, following[: len(child)])
    assert_same(grandchild, following[len(child) :])


@pytest.mark.skipif(ENGINES[0] != "onednn", reason="NumPy's BLAS hangs after a fork amid calls of other threads")
@pytest.mark.parametrize("build", CASES[: len(SOURCES)], ids="-".join, indirect=True)
def test_while_other_threads_compute(build: Callable[[], Any]) -> None:
    """At any moment of theirs: the locks that they hold then are never released in the child."""
    net, busy, stop = build(), build(), threading.Event()
    passes(net, 1)

    def work() -> None:
        while not stop.is_set():
            passes(busy, 1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        children = [in_fork(lambda: passes(net, 1)) for _ in range(8)]
    finally:
        stop.set()
        thread.join()
    following = passes(net, 1)
    for child in children:
        assert_same(child, following)


@pytest.mark.parametrize("build", [(ENGINES[0], "DummyData")], ids="-".join, indirect=True)
def test_while_a_thread_has_the_engine_lock(build: Callable[[], Any]) -> None:
    net, has_it, done = build(), threading.Event(), threading.Event()

    def work() -> None:
        with engine_lock():
            has_it.set()
            done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    has_it.wait()
    try:
        assert in_fork(lambda: net.blobs["data"].data.shape) == (8, 3, 24, 24)
    finally:
        done.set()
        thread.join()


def test_threads_of_the_numpy_engine() -> None:
    engine = NumpyEngine()
    engine._threads = 2
    done: list[int] = []

    def work() -> int:
        engine.for_each(done.append, [(n,) for n in range(100)])
        return len(done)

    assert work() == 100
    assert in_fork(work) == 200
