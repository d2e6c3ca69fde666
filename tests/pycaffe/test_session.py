"""Modes and devices of pycaffe, with stand-ins for GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fcaffe as caffe
from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda import driver, libraries
from fcaffe.errors import UsageError
from fcaffe.log import lines
from fcaffe.pycaffe import session
from tests.engines.cuda.fake_driver import FakeDriver

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "relu" type: "ReLU" bottom: "data" top: "relu" }
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "net.prototxt").write_text(NET)
    return str(tmp_path / "net.prototxt")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The GPUs that engines were made for, of two."""
    gpus: list[int] = []

    def engine(gpu: int) -> NumpyEngine:
        gpus.append(gpu)
        return NumpyEngine()

    monkeypatch.setattr(driver, "open_library", lambda: FakeDriver(("A", "B")))
    monkeypatch.setattr(libraries, "load", lambda *_: libraries.find_gpu(_[0]))
    monkeypatch.setattr(session, "gpu_engine", engine)
    for name, value in (("_on_gpu", False), ("_device", 0), ("_taken", None)):
        monkeypatch.setattr(session, name, value)
    session._engine_on.cache_clear()
    yield gpus
    session._engine_on.cache_clear()


def test_the_mode_counts_for_nets_made_from_then_on(made: list[int], path: str) -> None:
    caffe.set_device(1)
    caffe.Net(path, caffe.TEST)
    assert made == [], "only the mode chooses the GPU"
    caffe.set_mode_gpu()
    assert made == [], "the engine comes with the first net"
    for _ in range(2):
        caffe.Net(path, caffe.TEST)
    assert made == [1]
    caffe.set_mode_cpu()
    assert session.engine() is session._engine_on(None)


def test_the_device_may_come_after_the_mode(made: list[int], path: str) -> None:
    caffe.set_mode_gpu()
    caffe.set_device(1)
    caffe.Net(path, caffe.TEST)
    assert made == [1]
    caffe.set_device(0)
    with pytest.raises(UsageError, match=r"set_device\(0\): this process computes on GPU 1 already; start another one"):
        caffe.Net(path, caffe.TEST)


@pytest.mark.usefixtures("made")
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    with pytest.raises(UsageError, match=r"there is no GPU 2 here, but 0 \(A\), 1 \(B\)"):
        caffe.set_device(2)

    def missing(*_: Any) -> None:
        raise UsageError("CuPy is not installed")

    monkeypatch.setattr(libraries, "load", missing)
    with pytest.raises(UsageError, match="CuPy is not installed"):
        caffe.set_mode_gpu()
    caffe.Net(path, caffe.TEST)
    assert session.engine() is session._engine_on(None), "the mode has not changed"


def test_the_log_of_a_script(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def said() -> list[str]:
        return [line.partition("] ")[2] for line in capfd.readouterr().err.splitlines()]

    monkeypatch.setattr(lines, "_minimum", 0)
    session.log("shown {as} it is")
    assert said() == ["shown {as} it is"]
    caffe.init_log()
    session.log("still")
    caffe.init_log(2, True)
    session.log("dropped")
    caffe.init_log(0, False)
    session.log("not on standard error")
    lines.error("an error")
    caffe.init_log(0)
    session.log("again")
    assert said() == ["still", "an error", "again"]
    assert not list(tmp_path.iterdir()), "no log files, as glog would write"


def test_a_seed_counts_for_nets_that_are_there(tmp_path: Path) -> None:
    drop = 'layer { name: "drop" type: "Dropout" bottom: "relu" top: "drop" }'
    (tmp_path / "net.prototxt").write_text(NET + drop)
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
    seen = []
    for seed in (7, 7, 8):
        caffe.set_random_seed(seed)
        seen.append([net.forward(data=[[1] * 3] * 2)["drop"].tolist() for _ in range(9)])
    assert seen[0] == seen[1] != seen[2]


def test_timer(capfd: pytest.CaptureFixture[str]) -> None:
    timer = caffe.Timer()
    assert timer.ms == 0 and "benchmark.cpp:84] Timer has never been run" in capfd.readouterr().err
    timer.start()
    timer.stop()
    first = timer.ms
    assert first > 0 and timer.ms == first
    timer.start()
    second = timer.ms
    timer.stop()
    assert timer.ms == second, "reading it has stopped it"


def test_a_timer_waits_for_the_gpu(made: list[int], path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(NumpyEngine, "synchronize", lambda self: waits.append(1))
    caffe.set_mode_gpu()
    timer = caffe.Timer()
    timer.start()
    timer.stop()
    assert waits == [], "there is no net on it yet"
    caffe.Net(path, caffe.TEST)
    timer.start()
    timer.stop()
    assert waits == [1, 1] and made == [0]
