"""scripts/paper: the smallest run of each script that measures, where it needs no root."""

from __future__ import annotations

import gzip
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.parallel.conftest import MPIEXEC, needs_mpi

PAPER = Path(__file__).parents[2] / "scripts" / "paper"


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    names = ("figure4", "large_batch")
    sys.path.insert(0, str(PAPER))
    yield {name: importlib.import_module(name) for name in names}
    sys.path.remove(str(PAPER))


def ran(*command: object) -> list[dict]:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_mpi
def test_figure_4_times_sums_that_are_right() -> None:
    script = [sys.executable, PAPER / "figure4.py", "--ranks", "--reduce", "ring,halving", "--bytes", "4000"]
    found = ran(MPIEXEC, "-n", "2", *script)
    assert [(one["reduction"], one["ranks"], one["bytes"]) for one in found] == [
        ("ring", 2, 4000),
        ("halving", 2, 4000),
    ]
    assert all(0 < one["seconds"] < 1 for one in found)


def test_large_batches_are_trained_and_told(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    large_batch = scripts["large_batch"]
    for kind, header, values in (
        ("images-idx3", b"\0\0\x08\3\0\0\1\xf4\0\0\0\x1c\0\0\0\x1c", np.arange(500 * 784) % 251),
        ("labels-idx1", b"\0\0\x08\1\0\0\1\xf4", np.arange(500) % 10),
    ):
        packed = gzip.compress(header + values.astype(np.uint8).tobytes())
        (tmp_path / f"t10k-{kind}-ubyte.gz").write_bytes(packed)
    images = large_batch.databases(tmp_path, tmp_path)
    assert images == {"train": 400, "test": 100}
    accuracy = large_batch.train(tmp_path, images, 2, "LARS, warm-up", 0.5, 1)
    assert "max_iter: 2\n" in (tmp_path / "solver.prototxt").read_text()
    assert accuracy is not None and 0 <= accuracy <= 1
    points = [{"batch": 128, "rule": rule, "accuracy": 0.5} for rule in large_batch.RULES]
    points[1]["accuracy"] = None
    assert large_batch.table(points).splitlines()[2:] == ["| 128 | 50.0 % | diverged | 50.0 % | 50.0 % |"]
