"""Layers of one name, or without names, are layers of their own: a training does not depend on its layers' names."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

import fcaffe.layers  # noqa: F401
from fcaffe.engines import NumpyEngine
from fcaffe.net import Context, Net
from fcaffe.net.weights import copy_weights, to_model
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_solver
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Solver
from tests.cases import case

h5py = pytest.importorskip("h5py", reason="the hdf5 extra (h5py) is not installed")

ROWS, BATCH, WIDTH, STEPS = 10, 4, 64, 5
WEIGHTS = f'num_output: {WIDTH} weight_filler {{ type: "xavier" }}'  # as wide as products that shards share
NET = f"""
layer {{ name: "%s" type: "HDF5Data" top: "x" hdf5_data_param {{ source: "x.txt" batch_size: {BATCH} }} }}
layer {{ name: "%s" type: "HDF5Data" top: "label" hdf5_data_param {{ source: "label.txt" batch_size: {BATCH} }} }}
layer {{ name: "%s" type: "InnerProduct" bottom: "x" top: "a" inner_product_param {{ {WEIGHTS} }} }}
layer {{ name: "%s" type: "InnerProduct" bottom: "a" top: "b" inner_product_param {{ {WEIGHTS} }} }}
layer {{ name: "%s" type: "EuclideanLoss" bottom: "b" bottom: "label" top: "loss" }}
"""
OWN = ["images", "labels", "one", "two", "loss"]
POOL = ["images", "one", "same", ""]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    for name, rows in ("x", values), ("label", 2 * values):
        with h5py.File(f"{name}.h5", "w") as file:
            file[name] = rows
        Path(f"{name}.txt").write_text(f"{name}.h5\n")


def solver_of(names: list[str], shards: int) -> Solver:
    param = parse_text(
        'base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: 9 random_seed: 3 snapshot_prefix: "s" '
        f"snapshot_after_train: false net_param {{ {NET % tuple(names)} }}",
        pb.SolverParameter,
    )
    upgrade_solver(param, "solver")
    return Solver(param, NumpyEngine(), "counter", shards=shards)


def losses(solver: Solver, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        solver.step(1)
        found.append(solver.smoothed.mean)
    return found


@pytest.mark.parametrize("shards", [0, 2])
def test_trainings(shards: int) -> None:
    expected = losses(solver_of(OWN, shards), STEPS)
    for seed in range(8):
        names = [random.Random(f"{seed} {number}").choice(POOL) for number in range(len(OWN))]
        with case(names):
            assert losses(solver_of(names, shards), STEPS) == expected


@pytest.mark.parametrize("names", [["data", "data"], ["", ""], ["loss", "one"]], ids=str)
def test_resumed_trainings(names: list[str]) -> None:
    """Weights come back by name, in Caffe's files, so the layers that have some keep names of their own."""
    names = [*names, *("one ", "two ", "loss")]
    expected = losses(solver_of(OWN, 0), STEPS)
    first = solver_of(names, 0)
    losses(first, 2)
    first.snapshot()
    resumed = solver_of(names, 0)
    resumed.restore("s_iter_2.solverstate")
    assert losses(resumed, STEPS - 2) == expected[2:]


def test_noise() -> None:
    source = (
        'layer { type: "DummyData" top: "x" dummy_data_param { shape { dim: 8 dim: 64 } data_filler { value: 1 } } }'
    )

    def masks(names: list[str]) -> list[np.ndarray]:
        layers = (f'layer {{ name: "{n}" type: "Dropout" bottom: "x" top: "{i}" }}' for i, n in enumerate(names))
        param = parse_text("\n".join([source, *layers]), pb.NetParameter)
        param.state.phase = pb.TRAIN
        net = Net(param, Context(NumpyEngine(), CaffeRandom(1), noise="counter"))
        net.forward()
        return [np.array(net.blob(str(index)).data) for index in range(len(names))]

    alone = masks(["drop"])[0]
    for names in ["drop", "drop", "drop"], ["", ""], ["drop", "drop (2)", "drop", "drop (2)"]:
        found = masks(names)
        assert not any(np.array_equal(a, b) for a, b in itertools.combinations(found, 2)), names
        assert names[0] != "drop" or np.array_equal(found[0], alone)


def test_models_go_by_names() -> None:
    """As in Caffe each layer of a model goes to the first layer of its name, so the last one counts."""
    product = 'layer { name: "%s" type: "InnerProduct" bottom: "%s" top: "%s" inner_product_param { num_output: 2 } }'
    source = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }'
    text = "\n".join([source, product % ("ip", "x", "y"), product % ("ip", "y", "z")])
    trained, net = (
        Net(parse_text(text, pb.NetParameter), Context(NumpyEngine(), CaffeRandom(seed))) for seed in (1, 2)
    )
    for value, layer in enumerate(trained.layers[1:], 1):
        layer.blobs[0].data[...] = value
    copy_weights(net, to_model(trained), "model")
    assert [float(layer.blobs[0].data[0, 0]) for layer in net.layers[1:]] == [2, 0]
