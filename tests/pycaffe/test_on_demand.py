"""Blobs that a script's forward passes do not materialise: when the script reads them, they have their values.

A random script runs twice, on nets that materialise few blobs and on nets that run layer by layer. All that it has read
must agree to rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fcaffe as caffe
from fcaffe import log
from fcaffe.net import Context
from fcaffe.net.script.on_demand import RECENT, OnDemand
from fcaffe.pycaffe import session
from tests import engine_choice
from tests.layers.test_contract import values
from tests.net.random_nets import BATCH, RandomNet
from tests.net.random_residual_nets import RandomResidualNet

Seen = list[tuple[str, np.ndarray]]

SEEDS = range(8)
RESIDUAL_SEEDS = range(3)
ACTS = 40
NEAR = 1e-5  # of the largest value of an array


@pytest.fixture(autouse=True)
def one_engine(on_each_engine: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    log.set_minimum(1)
    made = engine_choice.engine()
    monkeypatch.setattr(session, "engine", lambda: made)
    yield


@pytest.fixture
def layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and nets that are made from then on leave out nothing."""

    def switch() -> None:
        context = lambda: Context(session.engine(), session.random, session.noise, shares_memory=True)  # noqa: E731
        monkeypatch.setattr(session, "context", context)
        made = caffe.Solver._bind

        def bind(self: Any, param: Any) -> None:
            made(self, param)
            for net in (self._solver.net, *self._solver.test_nets):
                net.on_demand = None

        monkeypatch.setattr(caffe.Solver, "_bind", bind)

    return switch


class Script:
    """Does things at random, the same for the same seed, to a net and another one that shares its weights at times."""

    def __init__(self, path: Path, seed: int, goes_backward: bool) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.text = path.read_text()
        caffe.set_random_seed(seed)
        phase = self.random.choice([caffe.TRAIN, caffe.TEST, caffe.TEST])
        self.nets = [caffe.Net(str(path), phase), caffe.Net(str(path), self.random.choice([caffe.TRAIN, caffe.TEST]))]
        self.goes_backward = goes_backward
        self.reshapes = "BatchReindex" not in self.text
        self.held: list[tuple[str, np.ndarray]] = []
        self.seen: Seen = []
        self.number = 0
        for net in self.nets:
            self._feed(net, BATCH)
            if self.goes_backward:
                net.forward()  # which comes before any backward pass

    def run(self) -> Seen:
        acts: list[tuple[Callable[[Any], None], float]] = [
            (self._forward, 8),
            (self._feed_anew, 4),
            (self._look, 2),
            (self._look_at_all, 0.4),
            (self._hold, 1),
            (self._write_held, 2),
            (self._drop, 1.5),
            (self._write, 1),
            (self._write_parameter, 1),
            (self._part, 0.7 + self.goes_backward),
            (self._reshape, 0.7 * self.reshapes),
            (self._reshape_parameter, 0.4),
            (self._share, 0.4),
            (self._load, 0.4),
            (self._backward, 1.5 * self.goes_backward),
        ]
        for _ in range(ACTS):
            self.number += 1
            caffe.set_random_seed(self.number)
            (act,) = self.random.choices([act for act, _ in acts], [weight for _, weight in acts])
            net = self.random.choices(self.nets, [4, 1])[0]
            self._note(f"{act.__name__} {self.nets.index(net)}", np.zeros(0))
            act(net)
        for net in self.nets:
            self._look_at_all(net)
        return self.seen

    def _note(self, what: str, array: np.ndarray) -> None:
        self.seen.append((f"{self.number}: {what}", array.copy()))

    def _forward(self, net: Any) -> None:
        for _ in range(self.random.choice([1, 1, 3])):
            for name, array in net.forward().items():
                self._note(f"output {name}", array)

    def _feed(self, net: Any, batch: int) -> None:
        shape = (batch, *net.blobs["x"].shape[1:])
        net.blobs["x"].data[...] = values(shape, self.number)
        net.blobs["label"].data[...] = np.arange(batch) % 4

    def _feed_anew(self, net: Any) -> None:
        self._feed(net, net.blobs["x"].shape[0])

    def _any(self, net: Any) -> tuple[str, np.ndarray]:
        name = self.random.choice(list(net.blobs))
        part = "data" if self.random.random() < 0.8 else "diff"
        return f"{part} of {name}", getattr(net.blobs[name], part)

    def _look(self, net: Any) -> None:
        self._note(*self._any(net))

    def _look_at_all(self, net: Any) -> None:
        for name, blob in net.blobs.items():
            self._note(f"data of {name}", blob.data)
            self._note(f"diff of {name}", blob.diff)
        for name, blobs in net.params.items():
            for blob in blobs:
                self._note(f"parameter of {name}", blob.data)

    def _hold(self, net: Any) -> None:
        if self.random.random() < 0.4 and net.params:
            name = self.random.choice(list(net.params))
            self.held.append((f"held parameter of {name}", self.random.choice(list(net.params[name])).data))
        else:
            name, array = self._any(net)
            if "label" not in name and "index" not in name:
                self.held.append((f"held {name}", array))

    def _write_held(self, net: Any) -> None:
        if self.held:
            name, array = self.random.choice(self.held)
            self._note(name, array)
            array *= 0.75

    def _drop(self, net: Any) -> None:
        if self.held:
            self.held.pop(self.random.randrange(len(self.held)))

    def _write(self, net: Any) -> None:
        name, array = self._any(net)
        self._note(name, array)
        if "label" not in name and "index" not in name:
            array.reshape(-1)[...] *= -1.25

    def _write_parameter(self, net: Any) -> None:
        if net.params:
            blobs = net.params[self.random.choice(list(net.params))]
            array = self.random.choice(list(blobs)).data
            array[...] = 0.9 * np.where(np.abs(array) < 1e30, array, 1)

    def _part(self, net: Any) -> None:
        start = self.random.randrange(len(net.layers))
        net._forward(start, self.random.randrange(start, len(net.layers)))
        if self.goes_backward and self.random.random() < 0.5:
            self._backward(net)

    def _backward(self, net: Any) -> None:
        start = self.random.choice([len(net.layers) - 1, self.random.randrange(len(net.layers))])
        net._backward(start, self.random.choice([0, self.random.randrange(start + 1)]))

    def _reshape(self, net: Any) -> None:
        batch = self.random.randint(1, BATCH + 2)
        self.held.clear()  # what becomes of these when a blob grows is not laid down
        net.blobs["x"].reshape(batch, *net.blobs["x"].shape[1:])
        net.blobs["label"].reshape(batch)
        if self.random.random() < 0.5:
            self._look(net)
        if self.random.random() < 0.5:
            net.reshape()
        self._feed(net, batch)
        net.forward()

    def _reshape_parameter(self, net: Any) -> None:
        """For a moment, in which a blob is read."""
        if net.params:
            blob = self.random.choice(list(net.params[self.random.choice(list(net.params))]))
            shape = tuple(blob.shape)
            blob.reshape(blob.count)
            self._look(net)
            blob.reshape(*shape)

    def _share(self, net: Any) -> None:
        self.nets[1].share_with(self.nets[0])

    def _load(self, net: Any) -> None:
        path = str(self.path.with_suffix(".caffemodel"))
        self.nets[0].save(path)
        self._write_parameter(self.nets[0])
        net.copy_from(path)


def text_of(seed: int) -> str:
    """A random net fed by Inputs, of batches of any size; of most seeds without layers whose code is Python's."""
    while True:
        net = RandomNet(seed, fed=True)
        if set(net.inputs) == {"x", "label"} and not net.fixed_batch and ("Python" not in net.text or seed % 7 == 0):
            return net.text
        seed += 1000


def scripts(path: Path, texts: dict[int, str], goes_backward: Callable[[int], bool] = lambda seed: False) -> Seen:
    """What a script of each seed sees, with a net of the seed's text."""
    seen = []
    for seed, text in texts.items():
        path.write_text(text)
        seen += [(f"seed {seed}: {what}", array) for what, array in Script(path, seed, goes_backward(seed)).run()]
    return seen


def same(seen: Seen, plain: Seen) -> None:
    done = [what for what, _ in plain]
    assert [what for what, _ in seen] == done
    for (what, array), (_, expected) in zip(seen, plain, strict=True):
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=1e-3)
        np.testing.assert_allclose(array, expected, rtol=0, atol=NEAR * largest, err_msg=what)


def twice(script: Callable[[], Seen], layer_by_layer: Callable[[], None]) -> None:
    """Run it on nets that materialise few blobs and on nets that materialise all."""
    with np.errstate(all="ignore"):
        seen = script()
        layer_by_layer()
        same(seen, script())


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each whole pass whether it has left blobs without values."""
    found: list[bool] = []
    choose = OnDemand.program

    def counted(self: OnDemand) -> Any:
        program, in_arena = choose(self)
        found.append(in_arena)
        return program, in_arena

    monkeypatch.setattr(OnDemand, "program", counted)
    return found


def test_a_script_sees_what_it_would_see_layer_by_layer(
    path: Path, layer_by_layer: Callable[[], None], passes: list[bool]
) -> None:
    texts = {seed: text_of(seed) for seed in SEEDS}
    twice(lambda: scripts(path, texts, lambda seed: seed % 3 == 0), layer_by_layer)
    assert sum(passes) > len(passes) / 8


def test_residual_nets(path: Path, layer_by_layer: Callable[[], None], passes: list[bool]) -> None:
    texts = {seed: RandomResidualNet(seed).text for seed in RESIDUAL_SEEDS}
    twice(lambda: scripts(path, texts), layer_by_layer)
    assert sum(passes) > len(passes) / 8


SOLVER = """base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 random_seed: 3 snapshot_after_train: false display: 0
test_iter: 2 test_interval: 3 net_param { NET }"""
NET = """
  layer { name: "in" type: "Input" top: "x" top: "label" input_param {
    shape { dim: 3 dim: 3 dim: 12 dim: 12 } shape { dim: 3 } } }
  layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" convolution_param {
    num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }
  layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
  layer { name: "scale" type: "Scale" bottom: "conv" top: "scale" scale_param { bias_term: true } }
  layer { name: "relu" type: "ReLU" bottom: "scale" top: "relu" }
  layer { name: "pool" type: "Pooling" bottom: "relu" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }
  layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param {
    num_output: 5 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of the net above, which a test may write anew."""
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return path


@pytest.mark.parametrize("watched", [False, True])
def test_test_nets_of_a_solver(
    tmp_path: Path, layer_by_layer: Callable[[], None], passes: list[bool], watched: bool
) -> None:
    """Their weights change while what they have left out may still be wanted."""
    path = tmp_path / "solver.prototxt"
    path.write_text(SOLVER.replace("NET", NET))

    def script() -> Seen:
        chance, seen = random.Random(7), []
        solver = caffe.get_solver(str(path))
        net, tested = solver.net, solver.test_nets[0]
        for one in (net, tested):
            one.blobs["x"].data[...] = values((3, 3, 12, 12), 1)

        def look(one: Any) -> None:
            name = chance.choice(list(one.blobs))
            seen.append((f"{solver.iter}: {name}", one.blobs[name].data.copy()))

        def amid_a_step() -> None:
            if chance.random() < 0.3:
                tested.forward()
            if chance.random() < 0.2:
                look(tested)

        if watched:
            solver.add_callback(amid_a_step, amid_a_step)
        for _ in range(60):
            act = chance.random()
            if act < 0.3:
                solver.step(chance.choice([1, 1, 4]))
            elif act < 0.6:
                tested.forward()
            elif act < 0.9:
                look(tested)
            else:
                net.forward()
                look(net)
        return seen

    twice(script, layer_by_layer)
    assert sum(passes) > len(passes) / 8


def test_layers_in_place_of_a_net_that_goes_backward(path: Path, layer_by_layer: Callable[[], None]) -> None:
    text = "force_backward: true" + NET.replace('top: "scale"', 'top: "conv"').replace('"scale" top', '"conv" top')
    twice(lambda: scripts(path, dict.fromkeys(range(3), text), lambda seed: True), layer_by_layer)


def test_each_blob_costs_at_most_one_second_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, again = caffe.Net(str(path), caffe.TEST), []
    run_again = OnDemand._run_again
    monkeypatch.setattr(OnDemand, "_run_again", lambda self, hidden: (again.append(1), run_again(self, hidden))[1])
    for number in range(5 * len(net.blobs)):
        net.forward()
        assert net.blobs[list(net.blobs)[number % len(net.blobs)]].data.size
    assert 0 < len(again) <= len(net.blobs)


def test_blobs_that_a_script_reads_no_more_are_fused_again(path: Path) -> None:
    """The first pass after it has read all blobs materialises all of them; the passes long after it only run fused."""
    net = caffe.Net(str(path), caffe.TEST)

    def nodes() -> int:
        net.forward()
        return len(net._net.program.nodes)

    fused = nodes()
    for blob in net.blobs.values():
        blob.data.sum()
    every = nodes()
    assert [nodes() for _ in range(RECENT // 2)] == [every] * (RECENT // 2) and every > fused
    held = net.blobs["scale"].data
    net.blobs["relu"].data.sum()
    for _ in range(2 * RECENT):
        shown = nodes()
    assert fused < shown < every
    net.blobs["x"].data[...] = values(net.blobs["x"].shape, 1)
    net.forward()
    assert np.abs(held - net.blobs["scale"].data).max() == 0 < np.abs(held).max()
    del held
    for _ in range(2 * RECENT):
        shown = nodes()
    assert shown == fused


def test_an_array_of_a_blob_that_has_grown_stays_live(path: Path) -> None:
    """A larger batch has other memory, of which the script holds an array before the next pass leaves blobs out."""
    net = caffe.Net(str(path), caffe.TEST)
    net.forward()
    net.forward()
    for batch in (5, 8):
        net.blobs["x"].reshape(batch, 3, 12, 12)
        net.blobs["label"].reshape(batch)
        net.forward()  # layer by layer, as the shapes are others
        held = net.blobs["ip"].data
        for number in range(3):
            net.blobs["x"].data[...] = values((batch, 3, 12, 12), number)
            net.forward()
            assert np.array_equal(held, net.blobs["ip"].data)


@pytest.mark.parametrize("holds", [False, True])
def test_an_input_whose_splits_are_looked_at_before_they_are_reshaped(path: Path, holds: bool) -> None:
    """They still have the shape of the last pass, of the same memory."""
    path.write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [2, 3, 12, 12] } } }'
        'layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" '
        'convolution_param { num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }'
        'layer { name: "sum" type: "Eltwise" bottom: "conv" bottom: "x" top: "sum" }'
    )
    for before, now in (((3, 3, 14, 8), (2, 3, 11, 10)), ((1, 3, 4, 4), (2, 3, 11, 10)), ((2, 3, 8, 8), (2, 3, 8, 8))):
        net, other = caffe.Net(str(path), caffe.TEST), caffe.Net(str(path), caffe.TEST)
        net.share_with(other)
        for each, shape in ((net, before), (net, now), (other, now)):
            each.blobs["x"].reshape(*shape)
            if shape == before:
                net.forward()
        held = [net.blobs["x"].data] if holds else []
        assert all(blob.data is not None for blob in net.blobs.values())
        for number in range(3):
            image = values(now, number)
            (held[0] if held else net.blobs["x"].data)[...] = image
            np.testing.assert_allclose(net.forward()["sum"], other.forward(x=image)["sum"], atol=NEAR)
        assert all(np.array_equal(array, image) for array in held)
