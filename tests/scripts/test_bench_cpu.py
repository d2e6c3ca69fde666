"""scripts/bench/cpu.py: a short race without PyTorch."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_lenet(tmp_path: Path) -> None:
    script, file = ROOT / "scripts" / "bench" / "cpu.py", tmp_path / "results.json"
    assert os.access(script, os.X_OK)
    words = [
        "--nets",
        "lenet",
        "--batches",
        "2",
        "--math",
        "fp32",
        "--peers",
        "pycaffe",
        "--rounds",
        "1",
        "--json",
        str(file),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text())["results"]
    assert [result["step"] for result in results] == ["training", "inference"]
    assert all(result["fcaffe"]["ms"] > 0 and result["gflops"] > 0 for result in results)
    assert all(result["pycaffe_ratio"] > 0 for result in results)
    assert done.stdout.count("| lenet | 2 |") == 4
