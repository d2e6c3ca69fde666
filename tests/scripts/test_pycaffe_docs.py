"""The examples of docs/pycaffe.md run as they stand, in one script."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_notebook_becomes_python_3(tmp_path: Path) -> None:
    """Lines of IPython stay: in a block, and over several lines."""
    source = [
        "%matplotlib inline\n",
        "for it in xrange(2):\n",
        "    print 'iteration', it\n",
        "    !cd data && \\\n",
        "        ./get.sh",
    ]
    cells = [{"cell_type": "code", "source": source}, {"cell_type": "markdown", "source": ["print 'x'"]}]
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    words = [sys.executable, ROOT / "scripts" / "convert_notebook", path]
    done = subprocess.run(words, capture_output=True, text=True)
    if "pip install fissix" in done.stderr:
        pytest.skip("fissix is not installed")
    assert done.returncode == 0, done.stderr
    code, text = json.loads(path.read_text())["cells"]
    lines = code["source"].split("\n")
    assert lines[:3] == ["%matplotlib inline", "for it in range(2):", "    print('iteration', it)"]
    assert lines[3:] == ["    !cd data && \\", "        ./get.sh"] and text["source"] == ["print 'x'"]
