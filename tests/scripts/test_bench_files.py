import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_measures_writing_and_reading(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "bench" / "files.py"
    assert os.access(script, os.X_OK)
    net = ROOT / "models" / "lenet" / "deploy.prototxt"
    done = subprocess.run(
        [sys.executable, script, "--net", net, "--folder", tmp_path, "--repeat", "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["bytes"] > 4 * 430_500 and len(found["results"]) == 6
    assert all(result["seconds"] > 0 for result in found["results"].values())
    assert not list(tmp_path.iterdir())
