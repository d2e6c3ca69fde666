"""A script may read and write any blob at any moment, and hold arrays of it (see also test_on_demand.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fcaffe as caffe
from fcaffe import log
from fcaffe.pycaffe import session
from tests import engine_choice
from tests.layers.test_contract import values


@pytest.fixture(autouse=True)
def one_engine(on_each_engine: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    log.set_minimum(1)
    made = engine_choice.engine()
    monkeypatch.setattr(session, "engine", lambda: made)
    yield
    caffe.set_rng("caffe")


SOLVED = """
base_lr: 0.1 lr_policy: "fixed" momentum: 0.5 random_seed: 3 snapshot_after_train: false display: 0
net_param {
  layer { name: "in" type: "Input" top: "x" top: "label" input_param {
    shape { dim: 4 dim: 3 dim: 9 dim: 9 } shape { dim: 4 } } }
  layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" convolution_param {
    num_output: 32 kernel_size: 3 weight_filler { type: "xavier" } } }
  layer { name: "deep" type: "Convolution" bottom: "conv" top: "deep" convolution_param {
    num_output: 32 kernel_size: 3 weight_filler { type: "xavier" } } }
  layer { name: "pool" type: "Pooling" bottom: "deep" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }
  layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param {
    num_output: 5 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
}
"""


@pytest.fixture
def solver(tmp_path: Path) -> Any:
    made = caffe.get_solver(str(file_of(tmp_path, SOLVED)))
    made.net.blobs["x"].data[...] = values((4, 3, 9, 9), 1)
    return made


def file_of(folder: Path, text: str) -> Path:
    path = folder / "it.prototxt"
    path.write_text(text)
    return path


def fresh_outputs(solver: Any) -> np.ndarray:
    """What the net gives for the weights and inputs as they are, computed by an engine that has kept nothing."""
    core = solver.net._net
    with solver.net._views.engine_at_work():
        core.forward()
    return np.array(core.blob("ip").data)


def test_weights_that_change_count_in_the_next_pass(solver: Any, tmp_path: Path) -> None:
    net = solver.net
    other = caffe.get_solver(str(file_of(tmp_path, SOLVED.replace("random_seed: 3", "random_seed: 4"))))
    held = net.params["deep"][0].data
    saved = str(tmp_path / "other.caffemodel")
    other.net.save(saved)

    def write_anew() -> None:
        net.params["conv"][0].data[...] *= 2

    def write_held() -> None:
        held[...] *= 2

    changes: list[Callable[[], Any]] = [
        write_anew,
        write_held,
        lambda: solver.step(1),
        lambda: net.copy_from(saved),
        lambda: net.share_with(other.net),
        lambda: other.step(1),
        lambda: other.net.params["deep"][0].data.fill(0.01),
    ]
    other.net.blobs["x"].data[...] = 1
    other.step(1)
    before = None
    for change in changes:
        for _ in range(3):  # by the third the weights have been kept
            found = net.forward(blobs=["ip"])["ip"].copy()
            np.testing.assert_array_equal(found, fresh_outputs(solver))
        assert before is None or not np.array_equal(before, found), "the change did nothing"
        before = found
        change()
    assert not np.array_equal(before, net.forward(blobs=["ip"])["ip"])


def test_weights_that_change_amid_the_pass_of_another_net(solver: Any, tmp_path: Path) -> None:
    alone, outer = (caffe.get_solver(str(file_of(tmp_path, SOLVED))) for _ in range(2))
    alone.net.blobs["x"].data[...] = values((4, 3, 9, 9), 1)
    outer.net.before_forward(lambda layer: solver.step(2) if layer == 0 else None)
    for _ in range(2):  # in the second what is made of the weights of the outer net is kept
        outer.net.forward()
    alone.step(4)
    for ours, theirs in zip(solver.net.params["deep"], alone.net.params["deep"], strict=True):
        np.testing.assert_array_equal(ours.data, theirs.data)


def test_training_with_the_weights_of_another_net_trains_both(solver: Any, tmp_path: Path) -> None:
    other = caffe.get_solver(str(file_of(tmp_path, SOLVED.replace("random_seed: 3", "random_seed: 4"))))
    alone = caffe.get_solver(str(file_of(tmp_path, SOLVED)))
    saved = str(tmp_path / "other.caffemodel")
    other.net.save(saved)
    alone.net.copy_from(saved)
    solver.net.share_with(other.net)
    alone.net.blobs["x"].data[...] = solver.net.blobs["x"].data
    before = other.net.params["deep"][0].data.copy()
    for trained in (solver, alone):
        trained.step(2)
    for name in other.net.params:
        for ours, theirs in zip(other.net.params[name], alone.net.params[name], strict=True):
            np.testing.assert_array_equal(ours.data, theirs.data)
    assert not np.array_equal(other.net.params["deep"][0].data, before)


def test_arrays_are_live_in_callbacks(solver: Any) -> None:
    net, seen = solver.net, []
    pooled, gradient = net.blobs["pool"].data, net.blobs["pool"].diff
    weights = net.params["deep"][0].diff

    def on_start() -> None:
        assert not weights.any(), "gradients are cleared before an iteration"

    def on_gradients() -> None:
        core = net._net
        np.testing.assert_array_equal(pooled, core.blob("pool").data)
        np.testing.assert_array_equal(gradient, core.blob("pool").diff)
        assert gradient.any() and weights.any()
        seen.append(pooled.copy())

    solver.add_callback(on_start, on_gradients)
    solver.step(3)
    assert len(seen) == 3 and not np.array_equal(seen[0], seen[2])


@pytest.mark.parametrize("part", ["data", "diff"])
def test_values_come_back_when_a_blob_is_reshaped_smaller_and_larger_again(solver: Any, part: str) -> None:
    """As in Caffe, where a blob is one stretch of memory that never shrinks."""
    blob, random = solver.net.blobs["x"], np.random.default_rng(1)
    blob.reshape(4, 3, 9, 9)
    memory = getattr(blob, part).ravel().copy()
    shapes = [(4, 3, 9, 9), (2, 3, 9, 9), (2, 5, 4, 6), (1, 5, 4, 6), (3, 3, 4, 4), (40,), (2, 3, 4), ()]
    for _ in range(60):
        shape = shapes[random.integers(len(shapes))]
        blob.reshape(*shape)
        count = int(np.prod(shape))
        if random.random() < 0.7:
            np.testing.assert_array_equal(getattr(blob, part).ravel(), memory[:count])
        if random.random() < 0.5:
            memory[:count] = random.standard_normal(count)
            getattr(blob, part)[...] = memory[:count].reshape(shape)


def test_memory_of_arrays_goes_with_them(solver: Any) -> None:
    views = solver.net._views
    for blob in solver.net.blobs.values():
        assert blob.data.size == blob.diff.size
    held = solver.net.blobs["conv"].data[:, 1:]
    solver.net.forward()
    solver.net.forward()  # what has been read before a pass stays until the next one
    assert len(views._copies) == 1
    np.testing.assert_array_equal(held, solver.net._net.blob("conv").data[:, 1:])


def test_inputs_that_are_written_in_each_pass_are_copied_once(solver: Any) -> None:
    data = solver.net.blobs["x"]
    data.data[...] = 1
    address = data.data.ctypes.data
    for value in (2, 3):
        data.data[:, :1] = value  # the rest stays
        solver.net.forward()
        assert data.data.ctypes.data == address
        blob = solver.net._net.blob("x").data
        assert (blob[:, :1] == value).all() and (blob[:, 1:] == 1).all()
