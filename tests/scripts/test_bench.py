"""scripts/bench: a short run of each script on the CPU, without PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scripts.bench_runs import ROOT, run

TINY = ["--nets", "lenet", "--batches", "2", "--rounds", "1", "--slice", "0.01"]
GPU = ["--device", "cpu", "--nets", "lenet", "--batches", "2", "--rounds", "1", "--peers", ""]


def test_cpu(tmp_path: Path) -> None:
    words = ["--math", "fp32", "--peers", "pycaffe", "--pause", "0", "--json", tmp_path / "results.json"]
    page = run("bench/cpu.py", *TINY, *words).stdout
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [result["step"] for result in results] == ["training", "inference"]
    for result in results:
        own = result["fcaffe"]
        assert 0 < own["fastest_ms"] == own["slices"][0]["min_ms"] <= own["slices"][0]["median_ms"] == own["ms"]
        assert result["pycaffe_ratio"] > 0 and result["gflops"] > 0
    assert page.count("| lenet | 2 |") == 2


def test_commits() -> None:
    head, _, *rows = run("bench/commits.py", ROOT, ROOT, *TINY, "--pause", "0").stdout.splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[2] for row in cells] == ["training", "inference", "script's forward"]
    assert all(len(row) == head.count("|") - 1 and float(row[9]) > 0 for row in cells)


def test_gpu(tmp_path: Path) -> None:
    """A cell that fails, here since tf32 needs a GPU, does not end the run."""
    page = run("bench/gpu.py", *GPU, "--math", "tf32,fp32", "--json", tmp_path / "results.json").stdout
    first, second, *rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert "tf32" in first["fcaffe"]["failure"]
    for row in (second, rows[-1]):
        assert row["fcaffe"]["images_per_s"] > 0 and row["fcaffe"]["first_step_s"] > 0 and row["tflops"] > 0
    assert rows[-1]["fcaffe"]["loss"] == pytest.approx(1)  # the sum of the probabilities
    assert "Failed:\n\n- fcaffe on lenet, batch 2, training, tf32: UsageError: --math tf32 needs a GPU" in page
    assert "--nets: no vgg; there are lenet, alexnet" in run("bench/gpu.py", "--nets", "vgg", code=2).stderr
    assert run("bench/gpu.py", "--table", tmp_path / "results.json").stdout.count("| lenet | 2 |") == 4


def test_check_gpu_says_what_is_missing() -> None:
    from fcaffe.engines.cuda import libraries
    from fcaffe.errors import UsageError

    try:
        libraries.load(0)
    except UsageError as problem:
        assert f"There is nothing to check: {problem}" in run("check_gpu", code=2).stdout
    else:
        pytest.skip("there is a GPU here")
