import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_measures_both_kinds_of_records(tmp_path):
    pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")
    script = ROOT / "scripts" / "bench" / "data.py"
    assert os.access(script, os.X_OK)
    command = [
        sys.executable,
        str(script),
        "--records",
        "6",
        "--batch-size",
        "4",
        "--seconds",
        "0.1",
        "--iterations",
        "0",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    assert set(results) == {"raw", "jpeg"}
    assert all(result["reads_per_s"] > 0 for result in results.values())
