"""Trainings whose InnerProducts are split over the workers have the numbers of one worker."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe import log
from fcaffe.engines import NumpyEngine
from fcaffe.model_files import read_model
from fcaffe.net.layer import State
from fcaffe.net.weights import gathered
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Solver
from tests.parallel.conftest import Job, needs_mpi
from tests.parallel.random_placements import write_data
from tests.parallel.rank_threads import ThreadExchange, on_ranks
from tests.parallel.test_placements import same

SEEDS = range(*map(int, os.environ.get("FCAFFE_HYBRID_SEEDS", "0 16").split()))
SOLVERS = """SGD momentum: 0.9 | SGD momentum: 0.9 local_lr_auto: true local_gw_ratio: 0.1 | Nesterov momentum: 0.9
    | Nesterov larc: true larc_eta: 0.1 momentum: 0.5 | AdaGrad delta: 0.01 | RMSProp rms_decay: 0.9 delta: 0.01
    | AdaDelta momentum: 0.9 delta: 0.01 | Adam momentum: 0.9 momentum2: 0.99 delta: 0.01"""
logged = threading.local()  # `values`: outputs of tests, and the norms of all weights, as the thread has logged them


def net(draw: random.Random, folder: Path) -> str:
    """InnerProducts in a row, as in AlexNet, with layers between them, branches, and losses from any of them."""
    reader = f'hdf5_data_param {{ source: "{folder}/rows.txt" batch_size: {draw.choice([6, 7, 12])} }}'
    layers = [f'layer {{ name: "rows" type: "HDF5Data" top: "v" top: "img" top: "m" top: "label" {reader} }}']

    def add(kind: str, top: str, *bottoms: str, more: str = "") -> str:
        top, named = top or f"b{len(layers)}", " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
        layers.append(f'layer {{ name: "l{len(layers)}" type: "{kind}" {named} top: "{top}" {more} }}')
        return top

    def product(bottom: str, outputs: int, axis: int = 1) -> str:
        bias = draw.choice(["bias_term: false", *['bias_filler { type: "uniform" min: -0.2 max: 0.2 }'] * 4])
        rates = draw.choice(["", "", "param { lr_mult: 0 }", "param { lr_mult: 2 decay_mult: 0 }"])
        fields = f"num_output: {outputs} axis: {axis} transpose: {draw.choice(['true', 'false'])} {bias} "
        fields += f'weight_filler {{ type: "{draw.choice(["xavier", "gaussian"])}" std: 0.3 }}'
        return add("InnerProduct", "", bottom, more=f"{rates} inner_product_param {{ {fields} }}")

    x = draw.choice(["v", "img", "m"])
    axis, read = draw.choice([1, 2]) if x == "m" else 1, {x}
    for _ in range(draw.randint(1, 3)):
        before, width = x, draw.randint(4, 9)
        x = product(before, width, axis)
        for kind in draw.sample(["ReLU", "Dropout", "TanH", "Sigmoid", "PReLU", "Scale", "Eltwise", "Loss"], 3):
            if kind == "Eltwise":
                x = add(kind, "", x, product(before, width, axis))
            elif kind == "Loss":
                add("Power", "", x, more=f"power_param {{ power: {draw.choice([1, 2])} }} loss_weight: 0.02")
                read.add(x)
            elif draw.random() < 0.7:
                x = add(kind, "" if x in read else x, x)
    add("SoftmaxWithLoss", "loss", product(x, 4), "label")
    return "\n".join(layers)


def solver(draw: random.Random, folder: Path) -> str:
    kind, fields = draw.choice(SOLVERS.split("|")).split(maxsplit=1)
    return f"""type: "{kind}" {fields} base_lr: 0.02 lr_policy: "fixed" random_seed: 5
        regularization_type: "{draw.choice(["L1", "L2"])}" weight_decay: 0.01 iter_size: {draw.choice([1, 2])}
        clip_gradients: {draw.choice([-1, 0.3])} test_iter: 3 test_interval: 1 test_initialization: false
        snapshot_prefix: "{folder}/it" snapshot_format: {draw.choice(["HDF5", "BINARYPROTO"])} display: 1
        debug_info: {draw.choice(["true", "false"])} snapshot_diff: true net_param {{ {net(draw, folder)} }}"""


def train(text: str, state: str = "", **options: Any) -> tuple[str, list[np.ndarray], int]:
    """Half of a training. Returns the path of its snapshot, worker 0's numbers, and how many parameters are split."""
    trained = Solver(parse_text(text, pb.SolverParameter), NumpyEngine(), "counter", **options)
    logged.values = []
    if state:
        trained.restore(state)
    losses = [trained.step(1) or float(trained.smoothed.mean) for _ in range(2)]
    trained.test_all()
    parameters, context, owned = trained.net.parameters, trained.context, trained.net.parameters.owned
    context.workers.check_same("weights", trained.data[: parameters.exchanged].tobytes())
    numbers = [np.array(losses), *logged.values]
    for flat in (trained.data, *trained.history):
        for one, own in zip(owned, parameters.slices, strict=True):
            numbers.append(np.array(gathered(context, one.blob, one.blob.logical(flat[own]), everywhere=True)))
    path = trained.snapshot(f"{trained.param.snapshot_prefix}{context.workers.size}")
    trained.close()
    return path, numbers, sum(one.is_split for one in owned)


def test_random_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a training, a test, and a snapshot from which another number of workers trains the other half."""
    pytest.importorskip("h5py")
    write_data(tmp_path)
    monkeypatch.setattr(log, "debug_all_params", lambda l1, l2: logged.values.append(np.array([l1[0], l2[0]])))
    monkeypatch.setattr(log, "net_outputs", lambda kind, _, values: logged.values.extend(values * (kind == "Test")))
    wrong, split = [], 0

    def on_workers(size: int, *given: str) -> tuple[str, list[np.ndarray], int]:
        return on_ranks(size, lambda one: train(*given, workers=one, exchange=ThreadExchange(one), split_below=1e9))[0]

    with log.quiet(3):
        for seed in SEEDS:
            draw = random.Random(seed)
            text = solver(draw, tmp_path)
            (state, first, _), sizes = train(text), draw.sample([1, 2, 3, 4], 2)
            expected = train(text, state)[1]
            other, *found = on_workers(sizes[0], text)
            errors = [same(found[0], first), same(on_workers(sizes[1], text, other)[1], expected)]
            split += found[1]
            if not max(errors) < 1e-5:
                wrong.append(f"{seed} on {sizes}: {errors}")
    assert split > len(SEEDS)
    assert not wrong, "\n".join(wrong)


@needs_mpi
def test_processes(folder: Path, start: Callable[..., Job]) -> None:
    """The model of three processes is that of one."""
    path, ip = folder / "net.prototxt", 'layer {\n  name: "ip"'
    field = 'inner_product_param { num_output: 40 weight_filler { type: "xavier" } }'
    wide = f'layer {{ name: "wide" type: "InnerProduct" bottom: "data" top: "w" {field} }}'
    path.write_text(path.read_text().replace('"data" top: "ip"', '"w" top: "ip"').replace(ip, wide + ip))
    steady = (folder / "solver.prototxt").read_text().replace("base_lr: 0.01", "base_lr: 0.0001")
    (folder / "solver.prototxt").write_text(steady)  # at which rounding to 16 bits does not grow
    models = []
    both = ["--workers", "3", "--parallel", "hybrid"]
    others = ["--compress", "fp16", "--report", "page.html"]
    for flags in (
        ["--workers", "1"],
        both,
        both + others,
        ["--snapshot", "small_iter_4.solverstate", *both[:2], *others],
    ):
        job = start(*flags)
        assert job.wait() == 0, job.text
        assert "residuals" not in job.text and "has no state that fits" not in job.text
        assert ('layer "wide" are split by outputs over 3 workers' in job.text) is ("hybrid" in flags)
        models.append(read_model(next(folder.glob("*_iter_8.caffemodel"))))
    one, *more = ([blob.data for layer in model.layers for blob in layer.blobs] for model in models)
    assert same(one, more[0]) < 1e-5 and max(same(one, other) for other in more[1:]) < 1e-2
    assert "<html" in (folder / "page.html").read_text()
    job = start(*both, "--compress", "topk:density=0.1")
    assert job.wait() and "--parallel hybrid does not go with --compress topk, which applies momentum" in job.text


class Residuals(ThreadExchange):
    """An exchange whose state is a flat array, which these trainings do not change."""

    compression = "made up"

    def allocate(self, xp: Any, count: int) -> Any:
        self.residual = np.zeros(count, np.float32)
        return super().allocate(xp, count)

    def state(self) -> State:
        return {"residual": self.residual}

    def restore_state(self, state: State) -> None:
        self.residual[...] = state["residual"]


@pytest.mark.parametrize(("before", "after"), [(1e9, 0.0), (0.0, 1e9), (1e9, 1e9)])
def test_residuals_are_those_of_their_parameters(tmp_path: Path, before: float, after: float) -> None:
    """Also where a snapshot is of a run that has split weights, or resumes in one."""
    write_data(tmp_path)
    text = solver(random.Random(7), tmp_path)

    def of_run(below: float, state: str = "") -> Callable[[Any], Any]:
        def run(workers: Any) -> Any:
            exchange = Residuals(workers)
            made = Solver(
                parse_text(text, pb.SolverParameter), NumpyEngine(), "counter", workers=workers, exchange=exchange,
                split_below=below,
            )  # fmt: skip
            parts = [(index, one, own) for index, (one, own) in enumerate(made.net.parameters.with_slices())]
            if state:
                made.restore(state)
                return {index: one.blob.logical(exchange.residual[own]).copy() for index, one, own in parts}, {
                    index for index, one, _ in parts if one.is_split
                }
            for index, one, own in parts:
                if not one.is_split:
                    exchange.residual[own] = 100 * workers.rank + index + 1
            return made.snapshot(), {index for index, one, _ in parts if one.is_split}

        return run

    with log.quiet(3):
        path, split = on_ranks(3, of_run(before))[0]
        assert bool(split) is (before > 0)
        found = on_ranks(2, of_run(after, path))
    for index in found[0][0]:
        total = sum(values[index].mean() if index not in dropped else 0 for values, dropped in found)
        lost = index in split or index in found[0][1]
        assert total == pytest.approx(0 if lost else sum(100 * rank + index + 1 for rank in range(3)))
