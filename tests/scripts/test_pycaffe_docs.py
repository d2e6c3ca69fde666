"""The examples of docs/pycaffe.md run as they stand, in one script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_examples_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/pycaffe.md").read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    (tmp_path / "script.py").write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-m", "fcaffe", "run", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
