"""The examples of docs/pycaffe.md run as they stand, in one script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_pairs_of_images(tmp_path: Path) -> None:
    """The example of docs/from-caffe.md makes records of two channels, labelled 1 if their digits agree."""
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/from-caffe.md").read_text(), re.DOTALL | re.MULTILINE)
    code = "import numpy as np; labels = np.arange(60) % 2\nimages = np.full((60, 28, 28), 7, np.uint8)\n" + block
    code += (
        "from fcaffe.data import open_database\nfrom fcaffe.proto.caffe_pb2 import Datum\n"
        "datums = [Datum.FromString(value) for _, value in open_database('mnist_siamese_train_lmdb')]\n"
        "assert {(d.channels, d.height) for d in datums} == {(2, 28)} and {d.label for d in datums} == {0, 1}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


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
