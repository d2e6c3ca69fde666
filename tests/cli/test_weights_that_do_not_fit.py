"""Weights that give a net not one layer: an error of each command, a warning in scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import fcaffe
from tests.cli.conftest import Result

Run = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("folder")
TOLD = 'has weights for no layer of this net, whose first is "'


@pytest.mark.parametrize(
    "words",
    [
        "train --solver other_solver.prototxt --weights small_iter_8.caffemodel",
        "test --model other.prototxt --weights small_iter_8.caffemodel --iterations 1",
        "time --model other.prototxt --weights small_iter_8.caffemodel --iterations 1",
        "extract_features small_iter_8.caffemodel other.prototxt other features 1 lmdb",
        "predict --model other.prototxt --weights small_iter_8.caffemodel lmdb",
    ],
)
def test_in_commands_and_scripts(words: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train --solver solver.prototxt").code == 0
    for name, text in (("other.prototxt", "net.prototxt"), ("other_solver.prototxt", "solver.prototxt")):
        Path(name).write_text(
            Path(text).read_text().replace('"ip"', '"other"').replace("net.prototxt", "other.prototxt")
        )
    assert TOLD in run(words).fatal
    capsys.readouterr()
    fcaffe.Net("other.prototxt", fcaffe.TEST, weights="small_iter_8.caffemodel")
    assert TOLD in capsys.readouterr().err
