"""`fcaffe ... --gpu 0` from end to end, each command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import NET, SOLVER, write_records

ROOT = Path(__file__).parents[2]
CONVOLUTION = """
layer {
  name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 8 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } }
}
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }
"""

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With net.prototxt, solver.prototxt and an LMDB."""
    head, inner, tail = NET.partition('layer {\n  name: "ip"')
    head = head.replace("  data_param", "  transform_param { scale: 0.00390625 }\n  data_param")
    net = head + CONVOLUTION + inner + tail.replace('bottom: "data" top: "ip"', 'bottom: "conv" top: "ip"')
    assert 'bottom: "conv" top: "ip"' in net and "scale" in net
    (tmp_path / "net.prototxt").write_text(net)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    write_records(str(tmp_path / "lmdb"), [0, 1, 2] * 4)
    return tmp_path


def fcaffe(folder: Path, *words: str, code: int = 0) -> str:
    """What the command says, out and err."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "fcaffe", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "flags",
    ["", "--math tf32", "--math bf16", "--math fp16", "--math fp16 --loss-scale 128", "--no-graph", "--recompute"],
)
def test_train(flags: str, folder: Path) -> None:
    said = fcaffe(folder, "train", "--solver", "solver.prototxt", "--gpu", "0", *flags.split())
    assert "Using GPUs 0" in said and "Optimization Done." in said
    assert "Iteration 8, loss = " in said and "nan" not in said.lower().replace("--on-nan", "")
    assert (folder / "small_iter_8.solverstate").exists()


def test_solver_mode_takes_the_gpu(folder: Path) -> None:
    (folder / "solver.prototxt").write_text(SOLVER.replace("solver_mode: CPU", "solver_mode: GPU"))
    assert "Using GPUs 0" in fcaffe(folder, "train", "--solver", "solver.prototxt")


def test_train_resume_and_test(folder: Path) -> None:
    """On the GPU, on the CPU from there, and its weights on the GPU."""
    fcaffe(folder, "train", "--solver", "solver.prototxt", "--gpu", "0")
    (folder / "solver.prototxt").write_text(SOLVER.replace("max_iter: 8", "max_iter: 12"))
    said = fcaffe(folder, "train", "--solver", "solver.prototxt", "--snapshot", "small_iter_8.solverstate")
    assert "Optimization Done." in said
    words = ["test", "--model", "net.prototxt", "--weights", "small_iter_12.caffemodel", "--iterations", "3"]
    scores = [_score(fcaffe(folder, *words, *gpu)) for gpu in ((), ("--gpu", "0"))]
    assert scores[1] == pytest.approx(scores[0], rel=1e-4)


def _score(said: str) -> float:
    """The last "loss = x" of a test."""
    return float(said.rpartition("] loss = ")[2].split()[0])


def test_time(folder: Path) -> None:
    said = fcaffe(folder, "time", "--model", "net.prototxt", "--gpu", "0", "--iterations", "5")
    assert "Average Forward-Backward: " in said and "conv\tforward: " in said


def test_profile(folder: Path) -> None:
    assert "Convolution" in fcaffe(folder, "time", "--model", "net.prototxt", "--gpu", "0", "--profile")


def test_device_query(folder: Path) -> None:
    said = fcaffe(folder, "device_query", "--gpu", "0")
    assert "Device id:" in said and "Number of multiprocessors:" in said


def test_a_gpu_that_is_not_there(folder: Path) -> None:
    said = fcaffe(folder, "train", "--solver", "solver.prototxt", "--gpu", "63", code=134)
    assert "63" in said and "GPU" in said
