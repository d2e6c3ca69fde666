"""A net has the numbers of one worker on any number of workers and with --reproducible, or a layer of it is refused."""

from __future__ import annotations

import itertools
import math
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe import log, pycaffe  # noqa: F401 - the type Python
from fcaffe.engines import NumpyEngine
from fcaffe.errors import FcaffeError
from fcaffe.net import Blob, Context
from fcaffe.net.placements import PARTIAL, REPLICATE, Placement, Shard
from fcaffe.net.registry import create_layer
from fcaffe.net.weights import gathered
from fcaffe.net.workers import Workers
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Solver
from tests.layers.examples import EXAMPLES
from tests.parallel.random_placements import PlacedNet, write_data
from tests.parallel.rank_threads import ThreadExchange, ThreadWorkers, on_ranks

NETS = int(os.environ.get("FCAFFE_PLACED_NETS", "40"))
SEED = int(os.environ.get("FCAFFE_PLACED_SEED", "0"))
SOLVER = 'base_lr: 0.02 lr_policy: "fixed" momentum: 0.9 random_seed: 5 snapshot_after_train: false clip_gradients: 5'
outputs = threading.local()  # `values`: those that the thread has logged


def train(text: str, **options: Any) -> list[np.ndarray]:
    """The losses of three iterations, the outputs of the last one over all workers, and the weights."""
    param = parse_text(SOLVER, pb.SolverParameter)
    param.net_param.CopyFrom(parse_text(text, pb.NetParameter))
    solver = Solver(param, NumpyEngine(), "counter", **options)
    losses = []
    for _ in range(3):
        solver.step(1)
        losses.append(float(solver.smoothed.mean))
    outputs.values = []
    solver.batches.log_outputs()
    owned = solver.net.parameters.owned
    weights = [gathered(solver.context, one.blob, one.blob.data, everywhere=True).copy() for one in owned]
    solver.close()
    return [np.array(losses), *outputs.values, *weights]


def on_workers(text: str, size: int, **more: Any) -> list[np.ndarray]:
    return on_ranks(size, lambda workers: train(text, workers=workers, exchange=ThreadExchange(workers), **more))[0]


def same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The largest error, relative to the largest value of each array, or to 1."""
    if [a.shape for a in ours] != [b.shape for b in theirs]:
        return math.inf
    return max(
        float(np.abs(a - b).max(initial=0)) / max(1.0, float(np.abs(b).max(initial=0)))
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("h5py")
    write_data(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(log, "net_outputs", lambda _kind, _, values: outputs.values.extend(map(np.ravel, values)))
    return tmp_path


HOW = {
    "2 workers": lambda text: on_workers(text, 2),
    "3 workers": lambda text: on_workers(text, 3),
    "3 workers, split weights": lambda text: on_workers(text, 3, split_below=1e9),
    "--reproducible 2": lambda text: train(text, shards=2),
}


def test_random_nets(folder: Path) -> None:
    """Of nets that one worker trains, few are refused, each by the name of a layer."""
    trained, wrong = 0, []
    refused: dict[str, list[str]] = {how: [] for how in HOW}
    with log.quiet(3):
        for seed in range(SEED, SEED + NETS):
            text = PlacedNet(seed, folder).text
            try:
                expected = train(text)
            except FcaffeError:
                continue
            if not all(np.isfinite(array).all() and np.abs(array).max(initial=0) < 1e4 for array in expected):
                continue
            trained += 1
            for how, run in HOW.items():
                try:
                    error = same(run(text), expected)
                except FcaffeError as problem:
                    refused[how].append(f"{seed}: {problem}")
                    if not re.search(r'layer "', str(problem)):
                        wrong.append(f"{seed}, {how}: {problem}")
                    continue
                if not error < 1e-5:
                    wrong.append(f"{seed}, {how}: {error:.1e}")
    assert trained > 0.6 * NETS
    assert not wrong, "\n".join([f"{len(wrong)} of {trained} nets", *wrong, *refused["2 workers"]])
    assert all(len(problems) < max(2, 0.05 * trained) for problems in refused.values()), refused


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_a_rule_answers_and_changes_nothing(kind: str) -> None:
    """For each setting of each layer, and for each placement that its bottoms may have: the same answer twice."""
    workers = Workers()
    workers.rank, workers.size = 1, 2
    context = Context(NumpyEngine(), CaffeRandom(1), "counter", workers=workers, split_below=1e9)
    context.share_of(2)
    for example in EXAMPLES[kind]:
        param = parse_text(example.text, pb.LayerParameter)
        param.name, param.type, param.phase = "it", kind, pb.Phase.Value(example.phase)
        param.bottom.extend(f"x{index}" for index in range(len(example.bottoms)))
        layer = create_layer(param, context)
        before, random = "", context.random.state()
        for placements in itertools.product(*map(placements_of, example.bottoms)):
            bottom = [Blob(np, context.own_shape(*one)) for one in zip(example.bottoms, placements, strict=True)]
            for blob, placement in zip(bottom, placements, strict=True):
                blob.placement = placement
            needed, tops = layer.rule(bottom)
            before = before or repr(vars(layer))  # a Python layer has its user's class once it is asked
            assert (needed, tops) == layer.rule(bottom) and len(needed) == len(bottom)
            assert all(isinstance(one, Placement) for one in (*needed, *tops))
            assert repr(vars(layer)) == before and context.random.state() == random


def placements_of(shape: tuple[int, ...]) -> list[Placement]:
    """Placements that a blob of this shape may have on two workers."""
    return [REPLICATE, PARTIAL, *(Shard(axis, size) for axis, size in enumerate(shape[:2]) if size > 1)]


def test_batches_of_each_worker_s_own(folder: Path) -> None:
    """With `per_worker` layers combine the samples of one worker, and a loss in user code is the mean over workers."""
    data = f'hdf5_data_param {{ source: "{folder}/rows.txt" batch_size: 6 }}'
    text = f"""layer {{ name: "rows" type: "HDF5Data" top: "v" {data} }}
        layer {{ name: "mix" type: "Softmax" bottom: "v" top: "mix" softmax_param {{ axis: 0 }} }}
        layer {{ name: "user" type: "Python" bottom: "mix" top: "loss" loss_weight: 0.3
                 python_param {{ module: "placed_layers" layer: "Loss" }} }}"""

    def work(workers: ThreadWorkers) -> list[np.ndarray]:
        workers.per_worker = True
        return train(text, workers=workers, exchange=ThreadExchange(workers))

    with log.quiet(3):
        losses, shown = on_ranks(2, work)[0]
        alone = train(text)
    np.testing.assert_allclose(shown, losses[2:] / 0.3, rtol=1e-5)
    assert losses[0] == pytest.approx((alone[0][0] + alone[0][1]) / 2, rel=1e-5)


@pytest.mark.parametrize("how", list(HOW))
def test_user_code_in_place(folder: Path, how: str) -> None:
    """Its gradient, which lies in the memory of the top's, is that of its bottom."""
    text = f"""layer {{ name: "rows" type: "HDF5Data" top: "v" top: "u"
                 hdf5_data_param {{ source: "{folder}/rows.txt" batch_size: 6 }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "v" top: "ip"
                 inner_product_param {{ num_output: 4 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "user" type: "Python" bottom: "ip" top: "ip"
                 python_param {{ module: "placed_layers" layer: "Centred" }} }}
        layer {{ name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "u" top: "loss" }}"""
    with log.quiet(3):
        assert same(HOW[how](text), train(text)) < 1e-5


@pytest.mark.parametrize("how", list(HOW))
def test_rows_of_readers_with_other_batches(folder: Path, how: str) -> None:
    """Six rows that belong to three samples meet six samples: parts of both have other lengths."""
    data = f'hdf5_data_param {{ source: "{folder}/rows.txt" batch_size: %d }}'
    text = f"""layer {{ name: "six" type: "HDF5Data" top: "v" top: "label" {data % 6} }}
        layer {{ name: "three" type: "HDF5Data" top: "u" {data % 3} }}
        layer {{ name: "wide" type: "InnerProduct" bottom: "u" top: "wide"
                 inner_product_param {{ num_output: 8 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "rows" type: "Reshape" bottom: "wide" top: "rows"
                 reshape_param {{ shape {{ dim: 6 dim: 4 }} }} }}
        layer {{ name: "sum" type: "Eltwise" bottom: "v" bottom: "rows" top: "sum" }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "sum" bottom: "label" top: "loss" }}"""
    with log.quiet(3):
        assert same(HOW[how](text), train(text)) < 1e-5


NORMALIZED = """layer { name: "cos" type: "InnerProduct" bottom: "ip" top: "cos" inner_product_param { num_output: 4
    bias_term: false normalize: true weight_filler { type: "xavier" } } }"""
SEQUENCES = """layer { name: "steps" type: "Permute" bottom: "m" top: "t" permute_param { order: 1 order: 0 order: 2 } }
    layer { name: "scores" type: "InnerProduct" bottom: "t" top: "s"
            inner_product_param { num_output: 4 axis: 2 weight_filler { type: "xavier" } } }"""
HARD = 'layer { name: "hard" type: "Threshold" bottom: "u" top: "hard" }'
SOFT = 'layer { name: "soft" type: "Softmax" bottom: "u" top: "soft" }'
IGNORE = "loss_param { ignore_label: 2 }"
LOSSES = {
    "weights of samples": ("", "SoftmaxWithLoss", "ip label pick", IGNORE),
    "soft labels": (SOFT, "SoftmaxWithLoss", "ip soft pick", ""),
    "weighted sigmoid": (HARD, "SigmoidCrossEntropyLoss", "ip hard pick", "loss_param { normalization: VALID }"),
    "focal": ("", "FocalLoss", "ip label", IGNORE),
    "focal, sigmoid": (HARD, "FocalLoss", "ip hard", "loss_param { ignore_label: 0 normalization: VALID }"),
    "Dice of labels": ("", "DiceCoefLoss", "ip label", ""),
    "CTC": (SEQUENCES, "WarpCTCLoss", "s labels", ""),
    "decoder": (SEQUENCES, "CTCGreedyDecoder", "s labels", ""),
    "ArcFace": (NORMALIZED, "CosinAddm", "cos label", ""),
    "AM-Softmax": ("", "LabelSpecificAdd", "ip label", "label_specific_add_param { bias: -0.35 }"),
}


@pytest.mark.parametrize("how", list(HOW))
@pytest.mark.parametrize("name", list(LOSSES))
def test_losses_of_forks(folder: Path, name: str, how: str) -> None:
    before, kind, bottoms, fields = LOSSES[name]
    tops = " ".join(f'top: "{top}"' for top in ("v", "u", "m", "label", "labels", "pick"))
    text = f"""layer {{ name: "rows" type: "HDF5Data" {tops}
                 hdf5_data_param {{ source: "{folder}/rows.txt" batch_size: 7 }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "v" top: "ip"
                 inner_product_param {{ num_output: 4 weight_filler {{ type: "xavier" }} }} }} {before}
        layer {{ name: "it" type: "{kind}" {" ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())} top: "it"
                 {fields} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "{"it" if "Add" in kind else "ip"}" bottom: "label" }}"""
    with log.quiet(3):
        assert same(HOW[how](text), train(text)) < 1e-5
