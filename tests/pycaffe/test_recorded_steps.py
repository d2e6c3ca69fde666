"""A script's training, whose nodes are recorded after some steps, has the bits of one that is not, whatever the script
looks at and writes in between."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fcaffe as caffe
from fcaffe import log
from fcaffe.pycaffe import session
from tests.engine_choice import engine
from tests.net.random_concat_nets import RandomConcatNet
from tests.net.random_nets import RandomNet

STEPS = 12


def run(file: Path, seed: int, records: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[bytes], int]:
    """What a script that this seed stands for has read, and how often layers were asked."""
    used = engine()
    used.records &= records
    monkeypatch.setattr(session, "engine", lambda: used)
    caffe.set_random_seed(seed)
    solver = caffe.get_solver(str(file))
    asked = 0
    for layer in solver.net._net.layers:

        def count(*arguments: Any, work: Any = layer.backward) -> None:
            nonlocal asked
            asked += 1
            work(*arguments)

        monkeypatch.setattr(layer, "backward", count)
    choice, read, held = random.Random(seed), [], []
    for _ in range(STEPS):
        act(solver, choice, read, held)
        solver.step(1)
        read += [array.tobytes() for array in held]
        read += [blob.data.tobytes() + blob.diff.tobytes() for blobs in solver.net.params.values() for blob in blobs]
    return read, asked


def act(solver: Any, choice: random.Random, read: list[bytes], held: list[np.ndarray]) -> None:
    """One thing, or nothing, that a script does between two steps."""
    net = solver.net
    blob = choice.choice(list(net.blobs.values()))
    parameter = choice.choice([blob for blobs in net.params.values() for blob in blobs])
    what = choice.choice(["nothing"] * 12 + ["look", "hold", "drop", "parameter", "pass", "part", "hook", "twice"])
    if what == "look":
        read.append(blob.data.tobytes() + blob.diff.tobytes())
    elif what == "hold":
        held.append(choice.choice([blob, parameter]).data)
    elif what == "drop":
        held.clear()
    elif what == "parameter":
        parameter.data[...] *= 0.9
        parameter.diff[...] = 1
    elif what == "pass":
        net.forward()
        blob.data[...] *= 0.5
        net.backward()
    elif what == "part":
        net.forward(start=choice.choice(list(net._layer_names)[1:]))
    elif what == "hook":
        solver.add_callback(lambda: None, lambda: None)
    elif what == "twice":
        net.forward()
        net.forward()


@pytest.mark.parametrize("kind", [RandomNet, RandomConcatNet])
def test_the_bits_of_a_training_that_is_not_recorded(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not engine().records:
        pytest.skip("oneDNN is missing, and NumPy's engine records nothing")
    log.set_minimum(1)
    file = tmp_path / "solver.prototxt"
    saved = 0
    for seed in range(8 if kind is RandomNet else 4):
        settings = 'base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 random_seed: 7 snapshot_after_train: false'
        file.write_text(f"{settings} net_param {{ {kind(seed).text} }}")
        (ours, few), (theirs, many) = (run(file, seed, records, monkeypatch) for records in (True, False))
        assert ours == theirs, f"seed {seed}\n{kind(seed).text}"
        saved += many - few
    assert saved > 0
