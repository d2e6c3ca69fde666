from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.cli import main
from fcaffe.errors import FcaffeError
from fcaffe.log.reader import read_log
from fcaffe.tools import plot as plotting
from fcaffe.tools.report import page
from tests.conftest import GOLDEN

pytest.importorskip("matplotlib")


def drawn(logs: Path | list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Label -> line of everything in the picture of a log, or of several."""
    drawn_axes = []
    draw = plotting._draw
    monkeypatch.setattr(plotting, "_draw", lambda axes, *others: (drawn_axes.append(axes), draw(axes, *others)))
    plotting.plot(logs if isinstance(logs, list) else [logs], folder / "curve.png")
    figure = drawn_axes[0].figure
    return {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}


def test_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(GOLDEN / "runs" / "lenet" / "train.log", tmp_path, monkeypatch)
    assert sorted(lines) == ["learning rate", "test accuracy, finally 0.9715", "test loss", "train loss"]
    assert list(lines["test accuracy, finally 0.9715"].get_xdata()) == [0, 100, 200, 300, 400, 500]


@pytest.mark.parametrize(
    "name", ["runs/lenet/train.log", "logs/train_two_test_nets.log", "logs/train_plain.log", "logs/train_stopped.log"]
)
def test_the_report_draws_the_same_curves(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(GOLDEN / name, tmp_path, monkeypatch)
    log = read_log(GOLDEN / name)
    charts = [chart for title, chart in page._charts(plotting.series_of(log)) if title != "Other test outputs"]
    curves = {one["name"].removesuffix(", smoothed"): one for chart in charts for one in chart["series"]}
    assert curves.keys() == {str(label).partition(", finally")[0] for label in lines}
    for label, line in lines.items():
        curve = curves[str(label).partition(", finally")[0]]
        np.testing.assert_allclose(np.array(curve["points"]), line.get_xydata(), rtol=1e-5)
    figure = next(iter(lines.values())).axes.figure
    for chart, axes in zip(charts, figure.axes, strict=True):
        assert chart["log"] == (axes.get_yscale() == "log")
        assert chart["ends"] is None or tuple(chart["ends"]) == axes.get_ylim()


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
    with pytest.raises(FcaffeError, match=r"pip install matplotlib pygraphviz"):
        plotting.plot([GOLDEN / "runs" / "lenet" / "train.log"], tmp_path / "curve.png")


def made_log(path: Path, count: int, rate: float = 0.1) -> Path:
    """A log of `count` displayed iterations, a minute apart, with a loss of 1 and 3 in turn."""
    lines = ["I1122 00:00:00.000000 1 solver.cpp:289] Solving made"]
    for index in range(count):
        prefix = f"I1122 {index // 60:02}:{index % 60:02}:00.000000 1 solver.cpp:239] Iteration {10 * index}"
        lines += [f"{prefix} (1 iter/s, 1s/10 iters), loss = {1 + 2 * (index % 2)}", f"{prefix}, lr = {rate}"]
    path.write_text("\n".join(lines[:-1]))  # the rate of the last iteration is not told
    return path


def test_the_loss_is_smoothed_over_its_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = drawn(made_log(tmp_path / "log", 400), tmp_path, monkeypatch)["train loss"]
    assert all(1.7 < value < 2.3 for value in line.get_ydata())
    (points,) = line.axes.collections
    assert sorted({value for _, value in points.get_offsets()}) == [1, 3]


def test_the_rate_goes_on_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = drawn(made_log(tmp_path / "log", 5), tmp_path, monkeypatch)["learning rate"]
    assert list(line.get_xdata()) == [0, 10, 20, 30, 40] and set(line.get_ydata()) == {0.1}


def test_several_runs_in_one_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [made_log(tmp_path / "a.log", 30), made_log(tmp_path / "b.log", 20, rate=0.001)]
    lines = drawn(logs, tmp_path, monkeypatch)
    assert sorted(lines) == ["_a rate", "_b rate", "a", "b"]
    assert lines["a"].get_color() == lines["_a rate"].get_color() != lines["b"].get_color()
    assert lines["_a rate"].axes.get_yscale() == "log"
    golden = [GOLDEN / "runs" / run / "train.log" for run in ("lenet", "mixed")]
    lines = drawn(golden, tmp_path, monkeypatch)
    assert f"{golden[0].with_suffix('')}, test accuracy, finally 0.9715" in lines  # both files have one name


@pytest.mark.parametrize("chart", range(8))
def test_caffes_charts(chart: int, tmp_path: Path) -> None:
    logs = [str(GOLDEN / "runs" / run / "train.log") for run in ("lenet", "mixed")]
    assert main(["plot_training_log", str(chart), str(tmp_path / "chart.png"), *logs]) == 0
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["8", "x.png", "log"], "8 is not a valid chart type: give one of 0: Test accuracy vs. Iters; 1: "),
        (["0", "x.png", "log"], "log has no test accuracy to draw"),
        (["0", "x.jpg", "log"], "a picture's name ends in .png, .pdf, .svg, not as x.jpg"),
    ],
)
def test_charts_that_cannot_be_drawn(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made_log(tmp_path / "log", 3)
    assert main(["plot_training_log", *words]) == 134
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    log = str(GOLDEN / "runs" / "lenet" / "train.log")
    assert main(["plot", log]) == 0 and capsys.readouterr().out == "train.png\n"
    for name in ("curve.svg", "curve.pdf"):
        assert main(["plot", log, f"--out={name}"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.pdf", "curve.svg", "train.png"]
    assert b"<svg" in Path("curve.svg").read_bytes() and Path("curve.pdf").read_bytes().startswith(b"%PDF")
    assert main(["plot", "none"]) == 134 and "cannot read none: No such file" in capsys.readouterr().err
    assert main(["plot"]) == 1
