"""Trainings whose InnerProducts are split over the workers have the numbers of one worker."""

from __future__ import annotations

import math
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe import log
from fcaffe.engines import NumpyEngine
from fcaffe.net.weights import gathered
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Observer, Solver
from tests.parallel.random_placements import write_data
from tests.parallel.rank_threads import ThreadExchange, ThreadWorkers, on_ranks

NETS = int(os.environ.get("FCAFFE_HYBRID_NETS", "24"))
SEED = int(os.environ.get("FCAFFE_HYBRID_SEED", "0"))
HALF = 2  # iterations before and after the snapshot
norms = threading.local()  # `values`: those of all weights, as the thread has logged them


def net(draw: random.Random, folder: Path) -> str:
    """InnerProducts in a row, as in AlexNet, with layers between them, branches, and losses from any of them."""
    batch = draw.choice([6, 7, 12])
    reader = f'hdf5_data_param {{ source: "{folder}/rows.txt" batch_size: {batch} }}'
    layers = [f'layer {{ name: "rows" type: "HDF5Data" top: "v" top: "img" top: "m" top: "label" {reader} }}']
    layers += [f'layer {{ name: "un{name}" type: "Silence" bottom: "{name}" }}' for name in ("v", "img", "m")]

    def product(bottom: str, outputs: int, axis: int = 1) -> str:
        top = f"ip{len(layers)}"
        fields = f"num_output: {outputs} axis: {axis} transpose: {draw.choice(['true', 'false'])} "
        fields += "" if draw.random() < 0.8 else "bias_term: false "
        fields += f'weight_filler {{ type: "{draw.choice(["xavier", "gaussian"])}" std: 0.3 }}'
        fields += 'bias_filler { type: "uniform" min: -0.2 max: 0.2 }' if "bias_term" not in fields else ""
        rates = "param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }" if "bias_term" not in fields else ""
        rates = rates if draw.random() < 0.5 else "param { lr_mult: 0 }" if draw.random() < 0.1 else ""
        layer = f'layer {{ name: "{top}" type: "InnerProduct" bottom: "{bottom}" top: "{top}" {rates}'
        layers.append(f"{layer} inner_product_param {{ {fields} }} }}")
        return top

    start = draw.choice(["v", "img", "m"])
    axis = draw.choice([1, 2]) if start == "m" else 1
    x, width, read = start, 0, {start}
    for _ in range(draw.randint(1, 3)):
        before, width = (x, width), draw.randint(4, 9)
        x = product(x, width, axis)
        read.add(before[0])
        for kind in draw.sample(["ReLU", "Dropout", "TanH", "Sigmoid", "PReLU", "Scale", "Eltwise", "Loss"], 3):
            if draw.random() < 0.5:
                continue
            if kind == "Eltwise":
                other = product(*before[:1], width, axis) if before[0] != x else x
                layers.append(f'layer {{ name: "sum{len(layers)}" type: "Eltwise" bottom: "{x}" bottom: "{other}" '
                              f'top: "sum{len(layers)}" }}')  # fmt: skip
                x = f"sum{len(layers) - 1}"
            elif kind == "Loss":
                layers.append(f'layer {{ name: "loss{len(layers)}" type: "Power" bottom: "{x}" top: "loss{len(layers)}"'
                              f" power_param {{ power: {draw.choice([1, 2])} }} loss_weight: 0.02 }}")  # fmt: skip
                read.add(x)
            else:
                top = f"top{len(layers)}" if x in read else x
                layers.append(f'layer {{ name: "{kind}{len(layers)}" type: "{kind}" bottom: "{x}" top: "{top}" }}')
                x = top
    x = product(x, 4)
    layers.append(f'layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "{x}" bottom: "label" top: "loss" }}')
    return "\n".join(layers)


def solver(draw: random.Random, folder: Path) -> str:
    kind = draw.choice(["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"])
    lines = {
        "SGD": draw.choice(["momentum: 0.9", "momentum: 0.9 local_lr_auto: true local_gw_ratio: 0.1"]),
        "Nesterov": draw.choice(["momentum: 0.9", "larc: true larc_eta: 0.1 momentum: 0.5"]),
        "RMSProp": "rms_decay: 0.9 delta: 0.01",
        "AdaDelta": "momentum: 0.9 delta: 0.01",
        "Adam": "momentum: 0.9 momentum2: 0.99 delta: 0.01",
    }
    return f"""type: "{kind}" {lines.get(kind, "delta: 0.01")} base_lr: 0.02 lr_policy: "fixed" random_seed: 5
        regularization_type: "{draw.choice(["L1", "L2"])}" weight_decay: 0.01 iter_size: {draw.choice([1, 2])}
        clip_gradients: {draw.choice([-1, 0.3])} test_iter: 3 test_interval: {HALF} test_initialization: false
        snapshot_prefix: "{folder}/it" snapshot_format: {draw.choice(["HDF5", "BINARYPROTO"])} display: 1
        debug_info: {draw.choice(["true", "false"])} snapshot_diff: true"""


class Outcomes(Observer):
    """Keeps the outputs of all tests."""

    def __init__(self) -> None:
        self.values: list[np.ndarray] = []

    def test_ends(self, index: int, outputs: Any) -> None:
        self.values += [values for _, values, _ in outputs]


def train(text: str, of_net: str, state: str = "", **options: Any) -> tuple[str, list[np.ndarray], int]:
    """Half of a training. Returns the path of its snapshot, worker 0's numbers, and how many parameters are split."""
    param = parse_text(text, pb.SolverParameter)
    param.net_param.CopyFrom(parse_text(of_net, pb.NetParameter))
    trained = Solver(param, NumpyEngine(), "counter", **options)
    trained.observers.append(tests := Outcomes())
    norms.values = []
    if state:
        trained.restore(state)
    losses = [trained.step(1) or float(trained.smoothed.mean) for _ in range(HALF)]
    trained.test_all()
    parameters = trained.net.parameters
    numbers = [np.array(losses), *tests.values, np.array(norms.values)]
    for flat in (trained.data, *trained.history):
        for one, own in zip(parameters.owned, parameters.slices(), strict=True):
            numbers.append(np.array(gathered(trained.context, one.blob, one.blob.logical(flat[own]), everywhere=True)))
    path = trained.snapshot(f"{param.snapshot_prefix}{trained.workers.size}")
    trained.close()
    return path, numbers, sum(one.is_split for one in parameters.owned)


def on_workers(size: int, *given: str) -> tuple[str, list[np.ndarray], int]:
    def work(workers: ThreadWorkers) -> tuple[str, list[np.ndarray], int]:
        return train(*given, workers=workers, exchange=ThreadExchange(workers), split_below=math.inf)

    return on_ranks(size, work)[0]


def error(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    return max(
        float(np.abs(a - b).max(initial=0)) / max(1.0, float(np.abs(b).max(initial=0)))
        for a, b in zip(ours, theirs, strict=True)
    )


def test_random_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a training, a test, and a snapshot from which another number of workers trains the other half."""
    pytest.importorskip("h5py")
    write_data(tmp_path)
    monkeypatch.setattr(log, "debug_all_params", lambda l1, l2: norms.values.append((l1[0], l2[0])))
    wrong, split = [], 0
    with log.quiet(3):
        for seed in range(SEED, SEED + NETS):
            draw = random.Random(seed)
            given = solver(draw, tmp_path), net(draw, tmp_path)
            state, first, _ = train(*given)
            expected = train(*given, state)[1]
            sizes = draw.sample([1, 2, 3, 4], 2)
            other, *found = on_workers(sizes[0], *given)
            errors = [error(found[0], first), error(on_workers(sizes[1], *given, other)[1], expected)]
            split += found[1]
            if not max(errors) < 1e-5:
                wrong.append(f"{seed} on {sizes}: {errors}")
    assert split > NETS
    assert not wrong, "\n".join(wrong)
