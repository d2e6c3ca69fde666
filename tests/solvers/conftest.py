"""The solver of the golden snapshots."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fcaffe.solvers import Solver
from tests.solvers.training import INTEROP


@pytest.fixture
def interop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solver_from: Callable[..., Solver]) -> Any:
    """The solver of the golden snapshots (without its test net, which reads LevelDB), in a folder with its files."""
    for name in ("net.prototxt", "mean_gray.binaryproto", "model_iter_4.caffemodel", "model_iter_4.solverstate"):
        shutil.copy(INTEROP / name, tmp_path)
    shutil.copytree(INTEROP / "gray_lmdb", tmp_path / "gray_lmdb")
    monkeypatch.chdir(tmp_path)
    text = (INTEROP / "solver_model.prototxt").read_text().replace("test_iter: 4", "").replace("test_interval: 4", "")
    made: list[Solver] = []

    def make(**fields: Any) -> Solver:
        made.append(solver_from(text, **fields))
        return made[-1]

    yield make
    for solver in made:
        solver.close()
