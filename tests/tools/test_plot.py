from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fcaffe.errors import FcaffeError
from fcaffe.tools import plot as plotting
from tests.conftest import GOLDEN

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    "log", ["runs/lenet/train.log", "logs/train_two_test_nets.log", "logs/train_plain.log", "logs/train_stopped.log"]
)
def test_a_picture(log: str, tmp_path: Path) -> None:
    plotting.plot(GOLDEN / log, tmp_path / "curve.png")
    content = (tmp_path / "curve.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 800 and height > 500
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def drawn(log: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Label -> line of everything in the picture of a log."""
    figures = []
    draw = plotting._draw
    monkeypatch.setattr(plotting, "_draw", lambda figure, log: (figures.append(figure), draw(figure, log)))
    plotting.plot(log, folder / "curve.png")
    (figure,) = figures
    return {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}


def test_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(GOLDEN / "runs" / "lenet" / "train.log", tmp_path, monkeypatch)
    assert sorted(lines) == ["learning rate", "test accuracy, finally 0.9715", "test loss", "train loss"]
    assert list(lines["test accuracy, finally 0.9715"].get_xdata()) == [0, 100, 200, 300, 400, 500]


def test_a_log_with_values_that_are_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (GOLDEN / "logs" / "train_plain.log").read_text()
    text = text.replace("loss = 2.28721", "loss = nan").replace("loss = 2.30015", "loss = inf")
    (tmp_path / "log").write_text(text)
    line = drawn(tmp_path / "log", tmp_path, monkeypatch)["train loss"]
    assert [str(value) for value in line.get_ydata()[:4]] == ["2.2559", "nan", "inf", "2.32375"]
    assert line.axes.get_yscale() == "linear"  # what is there of numbers is not wide
    assert (tmp_path / "curve.png").exists()


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FcaffeError, match=r"pip install 'fcaffe\[plot\]'"):
        plotting.plot(GOLDEN / "runs" / "lenet" / "train.log", tmp_path / "curve.png")


def test_from_the_command_line(tmp_path: Path) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fcaffe.cli.plot", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    picture = tmp_path / "curve.png"
    assert call(str(GOLDEN / "runs" / "lenet" / "train.log"), str(picture)).returncode == 0
    assert picture.exists()
    failed = call("none", str(picture))
    assert (failed.returncode, failed.stderr) == (1, "error: cannot read none: No such file or directory\n")
    assert call().returncode == 2
