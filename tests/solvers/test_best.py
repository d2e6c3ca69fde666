"""--keep-best and --patience: which weights are kept, when a training ends, and that a resumption changes neither."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.errors import SolverError, UsageError
from fcaffe.solvers import Action, Solver
from fcaffe.solvers.snapshot.files import paths
from tests.solvers.recurrent_runs import NET, solver_of, write_records
from tests.watching import watch

END = 16
TEXT = (
    f'{NET.format(kind="RNN", momentum=0.9)} snapshot_prefix: "run" random_seed: 4 test_iter: 2 test_interval: 1 '
    f"max_iter: {END}"
).replace("test_initialization: false", "")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path)
    return tmp_path


def trained(solver: Solver, iterations: int) -> tuple[dict[int, float], list[int], Action, bytes]:
    """The loss of each test, the iterations that were the best so far, how it ended, and the kept weights."""
    scores: dict[int, float] = {}
    watch(solver, test_ends=lambda _, outputs: scores.update({solver.iteration: float(outputs[0][1][0])}))
    kept: list[int] = []
    watch(solver, iteration_begins=lambda: kept.append(solver.best.iteration if solver.best else -1))  # after the test
    action = solver.step(iterations)
    solver.close()
    return scores, kept, action, Path("run_best.caffemodel").read_bytes()


@pytest.mark.parametrize(("wanted", "sign"), [("loss", 1), ("loss:max", -1)])
@pytest.mark.parametrize("patience", [0, 3])
def test_a_resumption_at_any_iteration_changes_nothing(wanted: str, sign: int, patience: int) -> None:
    settings: dict[str, Any] = {"keep_best": wanted, "patience": patience}
    scores, kept, action, weights = trained(solver_of(f"{TEXT} snapshot: 1", **settings), END)
    tested = sorted(scores)
    bests = [min(tested[: index + 1], key=lambda i: (sign * scores[i], i)) for index in range(len(tested))]
    assert kept == bests[: len(kept)], "the first of the best tests so far is kept"
    waits = [iteration - best for iteration, best in zip(tested, bests, strict=True)]
    assert (action is Action.STOP) == (patience > 0 and waits[-1] >= patience)
    assert not patience or all(wait < patience for wait in waits[:-1])
    for cut in range(1, len(kept), 4):
        resumed = solver_of(TEXT, **settings)
        resumed.restore(paths("run", cut)[1])
        again = trained(resumed, END - cut)
        assert again[0] == {i: score for i, score in scores.items() if i >= cut}
        assert (again[1], again[2], again[3]) == (kept[cut:], action, weights)


def test_nan_is_never_better() -> None:
    solver = solver_of(TEXT, keep_best="loss", patience=4)
    assert solver.best is not None
    judged = []
    for value in (math.nan, 2.0, math.nan, 1.0, math.inf, 1.0, math.nan, 3.0):
        solver.best.test_ends(0, [("loss", np.array([value], np.float32), 1.0)])
        judged.append((solver.best.judge(), float(solver.best.score)))
    assert [ends for ends, _ in judged] == [False] * 7 + [True]
    assert [best for _, best in judged[1:]] == [2, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("wanted", ["accuracy", "loss:highest", "flat"])
def test_an_output_that_is_not_there_is_named(wanted: str) -> None:
    with pytest.raises(SolverError, match=wanted.partition(":")[0]):
        solver_of(TEXT, keep_best=wanted)


def test_patience_needs_an_output() -> None:
    with pytest.raises(UsageError, match="--keep-best accuracy"):
        solver_of(TEXT, patience=2)
