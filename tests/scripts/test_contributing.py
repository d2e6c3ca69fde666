"""The examples of docs/contributing.md run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_examples_run() -> None:
    """In a process of their own, for they register layer types."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/contributing.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
