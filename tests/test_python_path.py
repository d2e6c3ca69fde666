"""Files in the current folder that have the names of Python's own modules are not imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fcaffe import python_path
from tests.parallel.conftest import ROOT, needs_mpi

FCAFFE = [os.path.join(os.path.dirname(sys.executable), "fcaffe")]
NET = """
layer { name: "d" type: "DummyData" top: "x" top: "t"
  dummy_data_param { shape { dim: 8 dim: 4 } shape { dim: 8 dim: 2 } } }
layer { name: "u" type: "Python" bottom: "x" top: "z" python_param { module: "user" layer: "User" } }
layer { name: "ip" type: "InnerProduct" bottom: "z" top: "y" inner_product_param {
  num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
"""
USER = """
import caffe
class User(caffe.Layer):
    def setup(self, bottom, top): pass
    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top):
        import beside, sndhdr_of_users
        top[0].data[...] = bottom[0].data
    def backward(self, top, propagate_down, bottom): bottom[0].diff[...] = top[0].diff
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in sys.stdlib_module_names:
        (tmp_path / f"{name}.py").write_text(f"open('imported', 'a').write('{name} ')\nraise ImportError('{name}')\n")
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "user.py").write_text(USER)
    for name in ("beside", "sndhdr_of_users", "mine"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.001 lr_policy: "fixed" max_iter: 2 snapshot_prefix: "run"'
    )
    return tmp_path


def output_of(words: list[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not Path("imported").exists(), Path("imported").read_text()
    return done.stdout + done.stderr


@needs_mpi
@pytest.mark.parametrize("flags", ["", "--import mine", "--workers 2", "--workers 2 --import mine", "--restarts 1"])
def test_trainings(folder: Path, flags: str) -> None:
    words = [*FCAFFE, "train", "--solver", "solver.prototxt", *flags.split()]
    words += ["--batch", "per-worker"] if "workers" in flags else []
    assert "Optimization Done" in output_of(words)


@pytest.mark.parametrize("version", [(3, 10), (3, 13)])
def test_programs_that_fcaffe_starts(folder: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]) -> None:
    monkeypatch.setattr(python_path.sys, "version_info", min(version, sys.version_info))
    words = python_path.python("-m", "fcaffe", "help", "train")
    assert "--solver" in output_of(words)
    assert output_of(python_path.python("-c", "import json, sys; print(sys.argv[1:])", "a b")) == "['a b']\n"


def test_the_current_folder_comes_behind_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(folder))])
    assert python_path.add_current_folder() and not python_path.add_current_folder()
    at = sys.path.index("")
    assert os.path.dirname(os.__file__) in sys.path[:at]
    assert not any("site-packages" in entry for entry in sys.path[:at] if entry != str(ROOT))
