"""scripts/bench/gpu.py on the CPU: a run, its JSON file and its tables."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "bench" / "gpu.py"
CHECK = ROOT / "scripts" / "check_gpu"
has_torch = importlib.util.find_spec("torch") is not None


def call(script: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    assert os.access(script, os.X_OK)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script), *words], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def race(tmp_path: Path, *words: str) -> tuple[dict[str, Any], str]:
    """The JSON and the Markdown of a run of LeNet."""
    file = tmp_path / "results.json"
    usual = ["--device", "cpu", "--nets", "lenet", "--batches", "2", "--math", "fp32", "--rounds", "1"]
    done = call(SCRIPT, *usual, "--json", str(file), *words)
    return json.loads(file.read_text()), done.stdout


def test_alone(tmp_path: Path) -> None:
    results, page = race(tmp_path, "--peers", "")
    assert [row["step"] for row in results["rows"]] == ["training", "inference"]
    for row in results["rows"]:
        assert row["fcaffe"]["images_per_s"] > 0 and row["fcaffe"]["first_step_s"] > 0 and row["tflops"] > 0
    assert 2 < results["rows"][0]["fcaffe"]["loss"] < 3
    assert results["rows"][1]["fcaffe"]["loss"] == pytest.approx(1)  # the sum of the probabilities
    assert page.count("| lenet | 2 |") == 2 and "Failed" not in page and not results["not_measured"]


@pytest.mark.skipif(not has_torch, reason="the bench extra (PyTorch) is not installed")
def test_against_pytorch(tmp_path: Path) -> None:
    results, page = race(tmp_path, "--peers", "eager", "--modes", "training")
    (row,) = results["rows"]
    assert row["ratio"] == row["fcaffe"]["images_per_s"] / row["eager"]["images_per_s"]
    assert row["eager"]["loss"] == pytest.approx(row["fcaffe"]["loss"], abs=0.3)
    assert row["of_peak"] > 0 and "times the faster PyTorch (lenet" in page


def test_failure_has_a_row(tmp_path: Path) -> None:
    """A cell that fails, here since tf32 needs a GPU, does not end the run."""
    results, page = race(tmp_path, "--peers", "", "--math", "tf32,fp32", "--modes", "inference")
    first, second = results["rows"]
    assert "tf32" in first["fcaffe"]["failure"] and "images_per_s" in second["fcaffe"]
    assert "Failed:\n\n- fcaffe on lenet, batch 2, inference, tf32: UsageError: --math tf32 needs a GPU" in page


def test_time_is_up(tmp_path: Path) -> None:
    results, page = race(tmp_path, "--peers", "", "--seconds-budget", "0.001")
    assert not results["rows"]
    assert results["not_measured"] == ["lenet, batch 2, training, fp32", "lenet, batch 2, inference, fp32"]
    assert "Not measured, since the time was up:\n\n- lenet, batch 2, training, fp32\n" in page


def test_tables_of_several_runs(tmp_path: Path) -> None:
    def run(name: str, net: str, math: str, own: float, missed: list[str]) -> str:
        row = {"net": net, "batch": 256, "step": "training", "math": math, "ratio": own / 100, "tflops": 1.0}
        row |= {"fcaffe": {"images_per_s": own}, "eager": {"images_per_s": 100.0}, "compile": {"failure": "broken"}}
        results = {"machine": "a GPU", "rounds": 1, "peak_tflops": {math: 400.0}, "rows": [row], "recompute": []}
        (tmp_path / name).write_text(json.dumps({**results, "not_measured": missed}))
        return str(tmp_path / name)

    missed = [f"{net}, batch 256, training, bf16" for net in ("vgg16", "nin")]
    files = [run("a", "vgg16", "tf32", 80, missed), run("b", "vgg16", "bf16", 160, [])]
    page = call(SCRIPT, "--table", *files).stdout
    assert page.startswith("a GPU; products of large matrices: 400 TFLOP/s in bf16, 400 TFLOP/s in tf32\n")
    assert "bf16 over TF32, both by fcaffe: vgg16 2.00" in page
    assert "| vgg16 | 256 | training | tf32 | 80 | 100 | failed | 0.80 |" in page
    assert page.rstrip().endswith("Not measured, since the time was up:\n\n- nin, batch 256, training, bf16")
    assert "- compile on vgg16, batch 256, training, bf16: broken" in page


def test_unknown_words_are_refused() -> None:
    assert "--nets: no vgg; there are lenet, alexnet" in call(SCRIPT, "--nets", "vgg", code=2).stderr


def test_check_gpu_says_what_is_missing() -> None:
    from fcaffe.engines.cuda import libraries
    from fcaffe.errors import UsageError

    try:
        libraries.load(0)
    except UsageError as problem:
        assert f"There is nothing to check: {problem}" in call(CHECK, code=2).stdout
    else:
        pytest.skip("there is a GPU here")
