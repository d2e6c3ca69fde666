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
