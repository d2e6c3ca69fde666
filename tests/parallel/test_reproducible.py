"""With --reproducible the weights have the same bits however many workers there are."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from fcaffe.cli import main
from fcaffe.engines import NumpyEngine
from fcaffe.errors import FcaffeError, NetError, SolverError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers import Solver
from fcaffe.threads import VARIABLES
from tests.cli.conftest import write_records
from tests.parallel.conftest import FCAFFE, LSTM, ROOT, needs_mpi, run_ranks

pytestmark = pytest.mark.jobs

# 18 samples are 4 uneven shards; crops, mirrors and Dropout are random; two batches make an iteration.
NET = """
layer {{ name: "data" type: "Data" top: "data" top: "label" transform_param {{ scale: 0.01 crop_size: 10 mirror: true }}
        data_param {{ source: "lmdb" backend: LMDB batch_size: 18 }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param {{ num_output: 8 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
layer {{ name: "drop" type: "Dropout" bottom: "conv" top: "conv" }}
layer {{ name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
        inner_product_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }} }}
{more}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" loss_param {{ {loss} }} }}
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.05 momentum: 0.9 weight_decay: 0.001 lr_policy: "fixed" clip_gradients: 1 iter_size: 2
display: 3 max_iter: 6 snapshot: 3 snapshot_prefix: "run" random_seed: 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.prototxt").write_text(NET.format(more="", loss=""))
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    write_records(str(tmp_path / "lmdb"), [0, 1, 2] * 7, (2, 12, 12))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*flags: str, **variables: str) -> tuple[bytes, str]:
    """The final model as it is in its file, and the log."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [*FCAFFE, "train", "--solver", "solver.prototxt", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return Path("run_iter_6.caffemodel").read_bytes(), done.stderr


def widen(folder: Path) -> None:
    """Give the net a convolution that Winograd's transforms suit."""
    wide = """layer { name: "wide" type: "Convolution" bottom: "data" top: "wide"
        convolution_param { num_output: 32 kernel_size: 3 pad: 3 weight_filler { type: "xavier" } } }"""
    net = NET.format(more="", loss="").replace('bottom: "data" top: "conv"', 'bottom: "wide" top: "conv"')
    net = net.replace("num_output: 8 kernel_size: 3", "num_output: 33 kernel_size: 3 pad: 1")
    (folder / "net.prototxt").write_text(net.replace('layer { name: "conv"', f'{wide} layer {{ name: "conv"'))


@needs_mpi
@pytest.mark.parametrize("math", ["fp32", "winograd"])
def test_any_number_of_workers_and_threads(folder: Path, math: str) -> None:
    if math == "winograd":
        pytest.importorskip("numba", reason="--math winograd needs Numba")
        widen(folder)
    weights, log = train("--reproducible", "5", "--math", math, OMP_NUM_THREADS="2", OPENBLAS_NUM_THREADS="2")
    assert "5 shards, this worker's on 2 threads side by side" in log and "1 thread" in log
    theirs, other = train("--reproducible=5", "--workers", "2", "--math", math, OMP_NUM_THREADS="3")
    assert "this worker's on 2 threads side by side" in other
    assert theirs == weights and re.findall(r"loss = \S+", other) == re.findall(r"loss = \S+", log)
    if math == "fp32":
        flags = "--workers 4 --reduce ring --bucket-mb 0.001 --snapshot run_iter_3.solverstate"
        assert train("--reproducible", "5", *flags.split(), OMP_NUM_THREADS="1")[0] == weights


@needs_mpi
def test_random_trainings(folder: Path) -> None:
    """Nets, rules, engines and shards; numbers of workers and threads, reductions and buckets."""
    run_ranks(5, "reproducible_ranks.py", 1, 5, folder=folder)


@needs_mpi
@pytest.mark.parametrize(("ranks", "check", "cliques"), [(6, "one-host", ""), (5, "several-hosts", "2")])
def test_reductions_keep_to_the_tree(ranks: int, check: str, cliques: str) -> None:
    """Several hosts are what MPICH takes one machine for, if told to."""
    run_ranks(ranks, "tree_order_ranks.py", check, **({"MPIR_CVAR_NUM_CLIQUES": cliques} if cliques else {}))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--reproducible 4097", "--reproducible 4097: the number of shards must be from 1 to 4096"),
        ("--reproducible -2", "--reproducible -2: the number of shards must be from 1 to 4096"),
        ("--reproducible 4 --workers 5", "runs on at most 4 workers, not on 5: give more shards"),
        ("--reproducible 4 --rng caffe", "does not go with --rng caffe: leave one of them out"),
        ("--reproducible 4 --compress fp16", "does not go with --compress fp16"),
        ("--reproducible 4 --batch per-worker", "does not go with --batch per-worker"),
        ("--reproducible 32", "cannot split a batch of 18, which --reproducible 32 cuts .* use at most 18"),
    ],
)
def test_flags_that_do_not_go_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    assert main(["train", "--solver", "solver.prototxt", *flags.split()]) == 134
    assert re.search(message, capsys.readouterr().err)


def test_several_threads_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where another program has loaded the BLAS before."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert main(["train", "--solver", "solver.prototxt", "--reproducible", "4"]) == 134
    assert "set OPENBLAS_NUM_THREADS=1" in capsys.readouterr().err


def make_solver(shards: int, more: str = "", loss: str = "", **options: bool) -> Solver:
    param = text_format.Parse(SOLVER, pb.SolverParameter())
    Path("net.prototxt").write_text(NET.format(more=more, loss=loss))
    return Solver(param, NumpyEngine(), "counter", shards=shards, **options)


def test_a_layer_whose_values_come_from_elsewhere(folder: Path) -> None:
    more = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 18 } } }'
    with pytest.raises(NetError, match=r'"x" .Input.: has values from outside .*, which --reproducible 4 cuts into'):
        make_solver(4, more)
    make_solver(1, more).close()


def test_shards_with_nets_of_their_own_and_a_layer_with_a_state(folder: Path) -> None:
    normalized = 'layer { name: "x" type: "BatchNorm" bottom: "conv" top: "x" } '
    with_state = """layer { name: "mine" type: "Python" bottom: "x" top: "y"
        python_param { module: "tests.pycaffe.user_layers" layer: "Counting" } }"""
    with pytest.raises(SolverError, match=r'a net of its own, .* this net has layer "mine" .* has a state'):
        make_solver(4, normalized + with_state)
    with pytest.raises(NetError, match=r"each worker's samples .--bn local."):
        make_solver(4, normalized, sync_batch_norm=False)


def test_an_error_in_one_of_the_shards_that_meet(folder: Path) -> None:
    solver = make_solver(4, NORMALIZED)
    solver.step(1)
    whole = solver.data.copy()
    forward = solver.nets[2].forward
    solver.nets[2].forward = lambda moment: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        solver.step(1)
    solver.nets[2].forward = forward  # type: ignore[method-assign]
    solver.data[:] = whole
    solver.step(1)
    assert np.isfinite(solver.data).all()
    solver.close()


NORMALIZED = (
    'layer { name: "norm" type: "BatchNorm" bottom: "ip" top: "ip" batch_norm_param { eps: 0.1 } } '
    'layer { name: "right" type: "Accuracy" bottom: "ip" bottom: "label" top: "right" top: "right of class" }'
)


@pytest.mark.parametrize(("more", "loss"), [("", ""), (NORMALIZED, "ignore_label: 1")])
def test_shards_are_the_batch(folder: Path, more: str, loss: str) -> None:
    """To rounding they give what the whole batch gives, with random crops and masks."""
    weights = []
    for shards in (0, 1, 4):
        solver = make_solver(shards, more, loss)
        solver.step(4)
        weights.append(solver.data.copy())
        solver.close()
    for others in weights[1:]:
        np.testing.assert_allclose(others, weights[0], rtol=1e-3, atol=1e-5)
    assert weights[2].tobytes() != weights[0].tobytes()
    if more:
        mean = next(layer.blobs[0].data for layer in solver.net.layers if layer.name == "norm")
        assert abs(mean).max() > 0


def test_a_loss_that_is_no_number_names_its_shard_s_blob(folder: Path) -> None:
    solver = make_solver(4)
    solver.nan_policy.on_nan = "stop"
    solver.data[:] = float("nan")
    with pytest.raises(FcaffeError, match=r'iteration 0: .*parameter 0 of layer "conv"'):
        solver.step(1)
    solver.close()


@pytest.mark.parametrize("on_nan", ["continue", "stop"])
def test_an_infinite_loss_of_one_shard_that_has_no_gradient(folder: Path, on_nan: str) -> None:
    """With `continue` the gradients are those of a run without this loss; a run that stops names the blob."""
    far = 'layer { name: "infinite" type: "Exp" bottom: "label" top: "exp" exp_param { scale: 60 } }'
    far += ' layer { name: "sum" type: "Reduction" bottom: "exp" top: "monitored" loss_weight: 1 }'
    weights = []
    for shards, more in ((0, ""), (4, far)):
        solver = make_solver(shards, more)
        solver.nan_policy.on_nan = on_nan
        if on_nan == "stop" and more:
            with pytest.raises(FcaffeError, match=r'iteration 0: .*blob "exp"'):
                solver.step(1)
        else:
            solver.step(1)
        weights.append(solver.data.copy())
        solver.close()
    if on_nan == "continue":
        np.testing.assert_allclose(weights[1], weights[0], rtol=1e-3, atol=1e-5)


@needs_mpi
def test_a_state_for_each_stream_goes_on_with_other_workers(folder: Path) -> None:
    net = (
        NET.format(more="", loss="")
        .replace("crop_size: 10", "crop_size: 8")
        .replace('bottom: "conv"', 'bottom: "back"')
    )
    (folder / "net.prototxt").write_text(net[: net.index("layer", 9)] + LSTM + net[net.index('layer { name: "ip"') :])
    weights, log = train("--reproducible", "5", "--workers", "2")
    assert "5 shards, this worker's on" in log
    resumed = train("--reproducible", "5", "--workers", "4", "--snapshot", "run_iter_3.solverstate")
    assert resumed[0] == weights
