"""The page of a training: what stands in it while it goes on, at its end, after an error, and from a log alone."""

from __future__ import annotations

import json
import math
import re
import signal
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fcaffe.errors import FcaffeError
from fcaffe.log.reader import NetCurves, Output, TrainingLog
from fcaffe.solvers import Solver
from fcaffe.tools.confusion import Evaluation, Mistake
from fcaffe.tools.report import recorder
from fcaffe.tools.report.page import Content, render
from tests.cli.conftest import Run
from tests.conftest import GOLDEN

VOID = {"meta", "img", "br", "link", "input"}


class Checker(HTMLParser):
    """Every tag that is opened is closed, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def words_of(page: str) -> str:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert not re.search(r"""(src|href)=["']?(http|//|\w+\.)""", page), "the page needs no other file"
    return " ".join(checker.words)


def charts_of(page: str) -> list[dict]:
    found = re.search(r"^const charts = (.*);$", page, re.MULTILINE)
    assert found
    return json.loads(found[1])


pytestmark = pytest.mark.usefixtures("folder")


def test_a_training_writes_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "EVERY", 0)
    pages: list[str] = []
    write = recorder.write_page
    monkeypatch.setattr(recorder, "write_page", lambda path, c: (write(path, c), pages.append(Path(path).read_text())))
    assert run("train -solver solver.prototxt -report page.html").code == 0
    assert len(pages) == 10, "one at the beginning, one after each iteration, one at the end"
    assert "const refresh = 0," in pages[-1] and all("const refresh = 0," not in page for page in pages[:-1])
    texts = [words_of(page) for page in pages]
    assert "Iteration 3 of 8" in texts[3] and "Ended at iteration 8" in texts[-1]
    assert " left." in texts[3] and " left." not in texts[-1] and all("Written 20" in text for text in texts)
    loss, scores, rate = charts_of(pages[-1])
    assert [point[0] for point in loss["series"][0]["points"]] == list(range(1, 9))
    assert [point[0] for point in scores["series"][0]["points"]] == [0, 4, 8]
    assert scores["series"][0]["name"] == "test accuracy" and rate["series"][0]["step"]
    assert "test accuracy, iteration 8" in texts[-1] and "samples are right" in texts[-1]
    assert "Test net at iteration 8: " in texts[-1]
    assert "solver.prototxt" in texts[-1] and "base_lr" in texts[-1]


def test_the_numbers_of_a_training_stay(run: Run) -> None:
    """Looking at what the test net confuses draws from no stream of the training's."""
    models = []
    for flags in ("", "-report page.html"):
        assert run(f"train -solver solver.prototxt {flags}").code == 0
        models.append(Path("small_iter_8.caffemodel").read_bytes())
    assert models[0] == models[1]


@pytest.mark.parametrize("interval", [4, 100])
def test_a_stopped_training_says_how_far_it_came_and_how_to_go_on(
    interval: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("train -solver solver.prototxt").code == 0  # its snapshots, of iteration 8, are older
    apply_update = Solver.apply_update

    def stop(solver: Solver, *args: object) -> None:
        if solver.iteration == 6:
            signal.raise_signal(signal.SIGINT)
        apply_update(solver, *args)

    monkeypatch.setattr(Solver, "apply_update", stop)
    text = Path("solver.prototxt").read_text().replace("test_interval: 4", f"test_interval: {interval}")
    Path("solver.prototxt").write_text(text)
    assert run("train -solver solver.prototxt -report page.html -log first.log").code == 0
    words = words_of(Path("page.html").read_text())
    assert re.search(r"Stopped at iteration 7 of 8 after \d+ s\.", words)
    assert "Go on by: fcaffe train --solver solver.prototxt --snapshot small_iter_7.solverstate" in words
    assert ("test accuracy, iteration 4" in words) == (interval == 4) and "test accuracy, iteration 0" not in words


def test_several_logs_of_one_training(run: Run) -> None:
    assert run("train -solver solver.prototxt -log first.log").code == 0
    assert run("train -solver solver.prototxt -snapshot small_iter_4.solverstate -log second.log").code == 0
    assert run("report second.log page.html").code == 0
    (later, *_) = charts_of(Path("page.html").read_text())
    assert min(point[0] for one in later["series"] for point in one["points"]) >= 4
    assert run("report first.log second.log page.html --solver solver.prototxt").code == 0
    page = Path("page.html").read_text()
    assert "first.log, second.log, up to iteration 8 of 8" in words_of(page)
    _, scores, _ = charts_of(page)
    assert [point[0] for point in scores["series"][0]["points"]] == [0, 4, 8]
    assert run("report first.log solver.prototxt page.html").fatal.startswith(
        "solver.prototxt has no line of a training"
    )


@pytest.mark.parametrize(
    ("scores", "low"),
    [([0.1, 0.9, 0.98, 0.99], 0.0), ([0.98, 0.99], 0.975), ([1.0, 1.0], 0.99), ([0.1, 0.2], 0.0), ([0.5, 0.5], 0.375)],
)
def test_all_scores_are_within_the_axis_and_those_near_1_can_be_told_apart(scores: list[float], low: float) -> None:
    log = TrainingLog(
        loss={0: 1.0}, test_nets={0: NetCurves(outputs={0: Output("accuracy", 0, False, dict(enumerate(scores)))})}
    )
    _, chart = charts_of(render(Content("t", "s", log)))
    assert chart["ends"] == [pytest.approx(low), pytest.approx(1 + (1 - low) / 50)]


def test_a_legend_names_only_what_has_points() -> None:
    log = TrainingLog(loss={0: math.nan, 1: math.inf}, test_nets={0: NetCurves(loss={1: 2.0})})
    page = render(Content("t", "s", log))
    assert [one["name"] for one in charts_of(page)[0]["series"]] == ["test loss"]
    assert "train loss" not in words_of(page).partition("const charts")[0]


def test_after_an_error_it_says_which(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(solver: Solver) -> None:
        raise FcaffeError("<the> disk is full")

    monkeypatch.setattr(Solver, "apply_update", fail)
    assert run("train -solver solver.prototxt -report page.html").code == 134
    page = Path("page.html").read_text()
    assert "Ended by an error: <the> disk is full" in words_of(page) and "const refresh = 0," in page


def test_a_disk_that_fills_up_ends_no_training(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "EVERY", 0)
    write, written = recorder.write_page, []

    def once(path: str, content: Content) -> None:
        if written:
            raise FcaffeError(f"cannot write {path}: no space")
        written.append(write(path, content))

    monkeypatch.setattr(recorder, "write_page", once)
    result = run("train -solver solver.prototxt -report page.html")
    assert result.code == 0 and "cannot write page.html: no space" in result.err
    assert "about to begin" in words_of(Path("page.html").read_text())


@pytest.mark.parametrize("log_file", sorted((GOLDEN / "runs").glob("*/train.log")), ids=lambda path: path.parent.name)
def test_from_a_log_alone(run: Run, log_file: Path) -> None:
    """Of Caffe's own."""
    assert run(f"report {log_file} page.html").code == 0
    page = Path("page.html").read_text()
    assert "up to iteration" in words_of(page)
    assert charts_of(page)[0]["series"][0]["points"]


# --- parts ------------------------------------------------------------------------------------------------------------


def test_what_is_not_finite_is_not_drawn() -> None:
    log = TrainingLog(loss={0: 1.0, 1: math.nan, 2: math.inf, 3: 0.5}, rate={0: 0.1})
    assert charts_of(render(Content("t", "s", log)))[0]["series"][0]["points"] == [[0, 1.0], [3, 0.5]]


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    log = TrainingLog(loss={index: 1 + index % 7 for index in range(100_001)})
    points = charts_of(render(Content("t", "s", log)))[0]["series"][0]["points"]
    assert len(points) <= 1201 and points[0][0] == 0 and points[-1][0] == 100_000


def test_names_are_escaped_wherever_they_stand() -> None:
    evil = "</script><b>&'\""
    log = TrainingLog(net=evil, loss={0: 1.0})
    page = render(Content(evil, evil, log, evil, tiles=[(evil, evil)], prototxts=[(evil, evil)]))
    assert "<b>&'" not in page and page.count("</script>") == 1
    assert evil in words_of(page)


@pytest.mark.parametrize("classes", [2, 40, 41, 1000])
def test_few_classes_make_a_matrix_and_many_a_list(classes: int) -> None:
    counts = np.eye(classes, dtype=np.int64) * 5
    counts[0, 1] = 3
    mistake = Mistake(0.75, 0, 1, np.zeros((3, 4, 4), np.float32))
    page = render(Content("t", "s", TrainingLog(loss={0: 1.0}), evaluation=Evaluation(counts, [mistake], "now")))
    right = f"Test net now: {5 * classes / (5 * classes + 3):.2%} of {5 * classes + 3:,} samples are right"
    assert right in words_of(page) and "label 0 guess 1" in " ".join(words_of(page).split())
    assert ("class=matrix" in page) == (classes <= 40)
