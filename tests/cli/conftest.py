"""The command line run in this process, in a folder of its own with a small net and solver in it."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fcaffe import log
from fcaffe.cli import main
from fcaffe.data import array_to_datum, open_database, write_lmdb
from fcaffe.tools import profile

NET = """
name: "small"
layer {
  name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "lmdb" backend: LMDB batch_size: 4 }
}
layer {
  name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer {
  name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy"
  include { phase: TEST }
}
"""
SOLVER = """
net: "net.prototxt" test_iter: 2 test_interval: 4 base_lr: 0.01 lr_policy: "step" gamma: 0.1 stepsize: 6 momentum: 0.9
display: 2 max_iter: 8 snapshot: 4 snapshot_prefix: "small" random_seed: 1 solver_mode: CPU
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def messages(self) -> list[str]:
        """The log without its prefixes, and without the lines of the reading threads, which come at any place."""
        messages = re.findall(r"^[IWEF]\d{4} [\d:.]+ +\d+ \S+\] (.*)$", self.err, re.MULTILINE)
        return [message for message in messages if "prefetching" not in message]

    @property
    def fatal(self) -> str:
        """The one fatal line, which must be the last, and no traceback before it."""
        lines = [line for line in self.err.splitlines() if re.match(r"F\d{4} ", line)]
        assert len(lines) == 1 and self.err.splitlines()[-1] == lines[0], self.err
        assert self.code == 134
        assert "Traceback" not in self.err
        return self.messages[-1]


Run = Callable[..., Result]


def write_records(path: str, labels: list[int], shape: tuple[int, ...] = (1, 4, 4)) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (len(labels), *shape), np.uint8)
    records = enumerate(zip(images, labels, strict=True))
    write_lmdb(path, [(b"%08d" % key, array_to_datum(*record).SerializeToString()) for key, record in records])


def records(path: str | Path) -> list[tuple[bytes, bytes]]:
    """All records of a database."""
    with contextlib.closing(open_database(str(path))) as database:
        return list(database)


@pytest.fixture(autouse=True)
def small_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`time --profile` measures the machine's peaks by arrays that take no seconds."""
    monkeypatch.setattr(profile, "SIDE", 64)
    monkeypatch.setattr(profile, "FLOATS", 1 << 16)


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of the test: net.prototxt, solver.prototxt and an LMDB of twelve images in three classes."""
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    Path("solver.prototxt").write_text(SOLVER)
    write_records("lmdb", [0, 1, 2] * 4)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """run("train -solver x"): words may also be given one by one."""
    monkeypatch.setattr("sys.argv", ["/usr/bin/fcaffe"])
    if importlib.util.find_spec("mpi4py"):  # --import tells it not to start MPI, which later tests of this process want
        monkeypatch.setattr("mpi4py.rc.initialize", True)

    def call(*words: str) -> Result:
        arguments = words[0].split() if len(words) == 1 else list(words)
        log.set_minimum(0)
        code = main(arguments)
        return Result(code, *capsys.readouterr())

    return call
