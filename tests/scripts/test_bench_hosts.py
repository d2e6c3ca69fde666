"""scripts/bench/hosts.py: a run of one turn without PyTorch."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.parallel.test_emulated_cluster import why_not
from tests.scripts.bench_runs import run

pytestmark = pytest.mark.jobs


@pytest.mark.cluster
def test_one_turn(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    if not importlib.util.find_spec("mpi4py"):
        pytest.skip("mpi4py is not installed")
    file, logs = tmp_path / "results.json", tmp_path / "logs"
    logs.mkdir()
    cluster = ["--nets", "lenet", "--hosts", "2", "--rates", "10gbit", "--json", file, "--logs", logs]
    words = ["--reduce", "auto", "--compress", "bf16", "--buckets", "", "--rounds", "1", "--iterations", "1"]
    page = run("bench/hosts.py", *cluster, *words).stdout
    (race,) = json.loads(file.read_text())
    assert race["batch"] == 64 and race["together"] and set(race["ms"]) == {"fcaffe-auto", "fcaffe-bf16"}
    ours = race["contenders"]["fcaffe-auto"]
    assert ours["hosts"] == 2 and sum(ours["bucket_bytes"]) >= ours["gradient_bytes"] == 4 * 25580
    assert race["split_ms"]["forward"] > 0 and race["split_ms"]["backward"] > 0 and race["sums_ms"] > 0
    assert page.count("| lenet | 64 | 2 | 10gbit |") == 1


def test_mistakes() -> None:
    assert "no lenet5; there are lenet, nin_cifar" in run("bench/hosts.py", "--nets", "lenet5", code=2).stderr
