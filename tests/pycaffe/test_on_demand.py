"""What forward passes for a script leave out: whenever a script looks, it has the bits of a net that leaves out nothing.

A random script runs twice, on nets that leave blobs out and on nets that go layer by layer, and all that it has seen is
compared.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fcaffe as caffe
from fcaffe import log
from fcaffe.net import Context
from fcaffe.pycaffe import session
from tests import engine_choice
from tests.layers.test_contract import values
from tests.net.random_nets import BATCH, RandomNet

Seen = list[tuple[str, np.ndarray]]

SEEDS = range(24)
ACTS = 40


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
        monkeypatch.setattr(session, "context", lambda: Context(session.engine(), session.random, session.noise))
        made = caffe.Solver._bind

        def bind(self: Any, param: Any) -> None:
            made(self, param)
            for net in self._solver.test_nets:
                net.on_demand = None

        monkeypatch.setattr(caffe.Solver, "_bind", bind)

    return switch


class Script:
    """Does things at random, the same for the same seed, to a net and another one that shares its weights at times."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.text = path.read_text()
        caffe.set_random_seed(seed)
        phase = self.random.choice([caffe.TRAIN, caffe.TEST, caffe.TEST])
        self.nets = [caffe.Net(str(path), phase), caffe.Net(str(path), self.random.choice([caffe.TRAIN, caffe.TEST]))]
        self.goes_backward = seed % 3 == 0
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
            (self._part, 0.7),
            (self._reshape, 0.7 * self.reshapes),
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
            self.random.choice(list(blobs)).data[...] *= 0.9

    def _part(self, net: Any) -> None:
        start = self.random.randrange(len(net.layers))
        net._forward(start, self.random.randrange(start, len(net.layers)))

    def _backward(self, net: Any) -> None:
        start = self.random.choice([len(net.layers) - 1, self.random.randrange(len(net.layers))])
        net._backward(start, self.random.choice([0, self.random.randrange(start + 1)]))

    def _reshape(self, net: Any) -> None:
        batch = self.random.randint(1, BATCH)
        self.held.clear()  # what becomes of these when a blob grows is not laid down
        net.blobs["x"].reshape(batch, *net.blobs["x"].shape[1:])
        net.blobs["label"].reshape(batch)
        if self.random.random() < 0.5:
            self._look(net)
        if self.random.random() < 0.5:
            net.reshape()
        self._feed(net, batch)
        net.forward()

    def _share(self, net: Any) -> None:
        self.nets[1].share_with(self.nets[0])

    def _load(self, net: Any) -> None:
        path = str(self.path.with_suffix(".caffemodel"))
        self.nets[0].save(path)
        self._write_parameter(self.nets[0])
        net.copy_from(path)


def text_of(seed: int) -> str:
    """A random net whose first layer is an Input; of most seeds without layers whose code is Python's."""
    while True:
        net = RandomNet(seed)
        if "Python" not in net.text or seed % 7 == 0:
            break
        seed += 1000
    shapes = "".join(re.findall(r"shape \{[^}]*\}", net.layers[0]))
    net.layers[0] = f'layer {{ name: "data" type: "Input" top: "x" top: "label" input_param {{ {shapes} }} }}'
    return "\n".join(net.layers)


def same(seen: Seen, plain: Seen) -> None:
    done = [what for what, _ in plain]
    assert [what for what, _ in seen] == done
    for (what, array), (_, expected) in zip(seen, plain, strict=True):
        np.testing.assert_array_equal(array, expected, err_msg=what)


def test_a_script_sees_what_it_would_see_layer_by_layer(tmp_path: Path, layer_by_layer: Callable[[], None]) -> None:
    path = tmp_path / "net.prototxt"
    runs: list[list[Seen]] = []
    left_out = 0
    for plain in (False, True):
        if plain:
            layer_by_layer()
        runs.append([])
        for seed in SEEDS:
            path.write_text(text_of(seed))
            script = Script(path, seed)
            with np.errstate(all="ignore"):
                runs[-1].append(script.run())
    for seed, (seen, expected) in enumerate(zip(*runs, strict=True)):
        try:
            same(seen, expected)
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}: {problem}\n{text_of(seed)}") from problem
