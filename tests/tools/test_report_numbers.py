"""The numbers of a report: bounded at any length, and the same after a kill and a resumption."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.log.reader import TrainingLog
from fcaffe.tools.confusion import Evaluation
from fcaffe.tools.report import numbers
from fcaffe.tools.report.numbers import LOSS, Numbers, Thinned, key_of
from fcaffe.tools.report.page import Content, render


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40_000))
def test_a_curve_is_thinned_and_whole(count: int) -> None:
    curve = Thinned()
    for iteration in range(1, count + 1):
        if curve.add(iteration, float(iteration)) and len(curve.points) > numbers.MOST:
            curve.halve()
    points = curve.curve()
    assert len(points) <= numbers.MOST + 1 and max(points) == count
    assert min(points) <= 2 * count / numbers.MOST + 1, "it begins where the training does"
    for iteration, value in points.items():
        assert iteration - curve.stride <= value <= iteration, "the mean of the iterations up to there"


@pytest.mark.parametrize("most", [5, 2400])
@pytest.mark.parametrize(("killed", "resumed"), [(37, 30), (30, 30), (60, 1)])
def test_a_run_that_was_killed_goes_on(
    most: int, killed: int, resumed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "MOST", most)
    key, path = key_of(0, 0, False, "accuracy: top 5"), str(tmp_path / "page.html.numbers")

    def train(made: Numbers, first: int, last: int) -> None:
        for iteration in range(first, last + 1):
            made.add(LOSS, iteration, 1 / iteration)
            if iteration % 10 == 0:
                made.add(key, iteration, iteration / 100)

    train(first := Numbers(path, 7, 0), 1, killed)
    text = Path(path).read_text()
    assert len(text) < 40 * 3 * most, "the file is small"
    Path(path).write_text(text + "loss 3")  # cut off by the kill
    first.close()
    train(second := Numbers(path, 7, resumed), resumed + 1, 80)
    log = second.log("net")
    if most > 80:
        assert log.loss == {iteration: 1 / iteration for iteration in range(1, 81)}
        assert log.test_nets[0].outputs[0].curve == {iteration: iteration / 100 for iteration in range(10, 81, 10)}
    assert max(log.loss) == 80 and min(log.loss) <= 1 + 80 / most * 4 and len(log.loss) <= most + 2
    second.close()
    other = Numbers(path, 8, 30)
    assert other.log("net") == TrainingLog(net="net"), "another run begins anew"
    other.close()


def test_the_confusion_says_what_a_class_is_taken_for() -> None:
    counts = np.array([[8, 2, 0], [0, 0, 0], [3, 1, 4]])
    lines = list(Evaluation(counts, [], names=["cat", "dog"]).lines(1))
    assert lines == [
        "cat    80.00% of 10; taken for dog 2",
        "dog         - of 0",
        "2      50.00% of 8; taken for cat 3",
    ]


def test_a_browser_opens_the_page(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no chromium here")
    (tmp_path / "page.html").write_text(render(Content("t", "s", TrainingLog(loss={1: 2.0, 9: 1.0}))))
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", (tmp_path / "page.html").as_uri()]
    done = subprocess.run([browser, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "<path d=" in done.stdout, done.stderr[-1000:]
