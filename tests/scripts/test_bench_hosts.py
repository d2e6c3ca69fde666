"""scripts/bench/hosts.py: its statistics, and a run of one turn without PyTorch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.parallel.test_emulated_cluster import why_not

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "bench" / "hosts.py"


def tables() -> Any:
    spec = importlib.util.spec_from_file_location("hosts_tables", SCRIPT.with_name("hosts_tables.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(**seconds: float) -> dict[str, Any]:
    """The measurements on 4 hosts at 1 Gbit/s. DDP with buckets of 4 MB is ddp4=0.1."""
    split = {"forward": 0.01, "backward": 0.02, "exposed reduce": 0.008, "wait for others": 0.002, "test": 0.0}
    ours = {"split": split, "sums": 0.025, "exposed": 0.008, "bucket_bytes": [1_500_000, 250_000]}
    contenders = {
        name.replace("ddp", "ddp-").replace("_", "-"): {"seconds": value} | (ours if "fcaffe" in name else {})
        for name, value in seconds.items()
    }
    return {"net": "lenet", "batch": 64, "hosts": 4, "rate": "1gbit", "contenders": contenders}


def test_sums_that_cannot_overlap_with_backward() -> None:
    module = tables()
    assert module.sum_ms(4e6, 4, "1gbit") == pytest.approx(48)  # as docs/distributed.md has it
    assert module.sum_ms(4e6, 8, "10gbit") == pytest.approx(5.6)
    assert module.not_hidden_ms([1_500_000, 250_000], 20, 4, "1gbit") == pytest.approx(3)  # the last bucket
    assert module.not_hidden_ms([1_500_000, 250_000], 5, 4, "1gbit") == pytest.approx(21 - 5)  # all but backward
    assert module.not_hidden_ms([], 5, 4, "1gbit") == 0


def test_row_and_table() -> None:
    module = tables()
    short = {"fcaffe_onebit": 0.035, "fcaffe_bf16": 0.03, "ddp1_fp16": 0.045, "ddp4_fp16": 0.048}
    race = result(fcaffe_auto=0.04, fcaffe_tree=0.06, ddp1=0.06, ddp4=0.05, ddp25=0.07, **short)
    row = module.row_of(race)
    assert row["ddp"] == "ddp-4" and row["ddp_short"] == "ddp-1-fp16" and row["ratio"] == pytest.approx(1.25)
    assert row["wait_share"] == pytest.approx(0.05) and row["exposed_ms"] == pytest.approx(8)
    assert row["not_hidden_ms"] == pytest.approx(3) and "test" not in row["split_ms"]
    cells = [cell.strip() for cell in module.table([race | row]).splitlines()[-1].strip("|").split("|")]
    assert len(cells) == len(module.HEAD)
    assert cells[:8] == ["lenet", "64", "4", "1gbit", "40.0", "60.0", "", "35.0 (onebit), 30.0 (bf16)"]
    assert cells[8:] == ["50.0 (4)", "1.25", "45.0 (1)", "8.0", "3.0", "5.0%"]


def test_a_race_of_only_one_side_has_no_ratio() -> None:
    module = tables()
    for race in (result(fcaffe_auto=0.04), result(ddp4=0.05)):
        row = module.row_of(race)
        assert "ratio" not in row and module.table([race | row]).count("\n") == 2


def test_medians_and_slow_bucket_sizes() -> None:
    module = tables()
    turns = [
        {"seconds": seconds, "split": {"forward": seconds / 2}, "layout": "default"} for seconds in (3.0, 1.0, 2.0)
    ]
    assert module.median_of(turns) == {"seconds": 2.0, "split": {"forward": 1.0}, "layout": "default"}
    best = {"fcaffe-auto": 5.0, "ddp-1": 2.0, "ddp-4": 2.1, "ddp-25": 2.3}
    best |= {"ddp-1-fp16": 1.6, "ddp-4-fp16": 1.4}
    taken = {name: [{"seconds": 9.0}, {"seconds": seconds}] for name, seconds in best.items()}
    assert module.without_slow_ddp(list(best), taken) == ["fcaffe-auto", "ddp-1", "ddp-4", "ddp-4-fp16"]
    assert module.without_slow_ddp(["fcaffe-auto"], taken) == ["fcaffe-auto"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    assert os.access(SCRIPT, os.X_OK)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.cluster
def test_one_turn(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    if not importlib.util.find_spec("mpi4py"):
        pytest.skip("mpi4py is not installed")
    file, logs = tmp_path / "results.json", tmp_path / "logs"
    logs.mkdir()
    cluster = ["--nets", "lenet", "--hosts", "2", "--rates", "10gbit", "--json", str(file), "--logs", str(logs)]
    done = run(
        *cluster,
        "--reduce",
        "auto",
        "--compress",
        "bf16",
        "--buckets",
        "",
        "--rounds",
        "1",
        "--iterations",
        "1",
    )
    assert done.returncode == 0, done.stderr
    (race,) = json.loads(file.read_text())
    assert race["batch"] == 64 and race["together"] and set(race["ms"]) == {"fcaffe-auto", "fcaffe-bf16"}
    ours = race["contenders"]["fcaffe-auto"]
    assert ours["hosts"] == 2 and sum(ours["bucket_bytes"]) >= ours["gradient_bytes"] == 4 * 431080
    assert race["split_ms"]["forward"] > 0 and race["split_ms"]["backward"] > 0 and race["sums_ms"] > 0
    assert done.stdout.count("| lenet | 64 | 2 | 10gbit |") == 1


def test_mistakes() -> None:
    done = run("--nets", "lenet5")
    assert done.returncode == 2 and "no lenet5; there are lenet, nin_cifar" in done.stderr
