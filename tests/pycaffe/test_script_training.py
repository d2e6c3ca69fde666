"""A script's training has the bits of the command line's, whatever the script reads in between."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fcaffe as caffe
from fcaffe import log
from fcaffe.proto import read_solver
from fcaffe.pycaffe import session
from fcaffe.solvers import Solver
from tests.engine_choice import engine
from tests.net.random_nets import RandomNet

STEPS = 6


def read_something(net: Any, choice: random.Random, held: list[np.ndarray]) -> None:
    blob = choice.choice([*net.blobs.values(), *(blob for blobs in net.params.values() for blob in blobs)])
    what = choice.choice(["nothing", "data", "diff", "hold", "drop"])
    if what == "hold":
        held.append(blob.data)
    elif what == "drop":
        held.clear()
    elif what != "nothing":
        assert getattr(blob, what) is not None


@pytest.mark.usefixtures("on_each_engine")
def test_the_bits_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.set_minimum(1)
    used = engine()
    monkeypatch.setattr(session, "engine", lambda: used)
    file = tmp_path / "solver.prototxt"
    for seed in range(24 if used.name != "NumPy" else 12):
        text = RandomNet(seed).text
        if "BatchNorm" in text and used.name != "NumPy":
            continue  # fused with the Scale behind it by the command line, which changes last bits
        settings = 'base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 random_seed: 7 snapshot_after_train: false'
        file.write_text(f"{settings} net_param {{ {text} }}")
        script = caffe.get_solver(str(file))
        command = Solver(read_solver(str(file)), engine(), whole_passes=True)
        choice, held = random.Random(seed), []
        for step in range(STEPS):
            read_something(script.net, choice, held)
            for solver in script, command:
                solver.step(1)
            bits = [p.blob.data.tobytes() for p in script._solver.net.parameters.owned]
            assert bits == [p.blob.data.tobytes() for p in command.net.parameters.owned], f"seed {seed}, {step}\n{text}"


def test_a_gradient_that_a_script_writes_counts_on_a_loss_in_place():
    net = caffe.Net(
        """force_backward: true
        layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 3 } } }
        layer { name: "twice" type: "Power" bottom: "x" top: "y" power_param { scale: 2 } }
        layer { name: "relu" type: "ReLU" bottom: "y" top: "y" loss_weight: 4 }""",
        caffe.TRAIN,
    )
    net.blobs["x"].data[...] = 1
    for written, expected in ((None, 8), (3, 6), (None, 8)):
        net.forward()
        if written is not None:
            net.blobs["y"].diff[...] = written
        net.backward()
        assert net.blobs["x"].diff.tolist() == [expected] * 3
