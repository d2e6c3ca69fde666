"""The examples of docs/pycaffe.md run as they stand, in one script."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
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


def test_the_lines_that_install_a_kernel(tmp_path: Path) -> None:
    """They write a kernel.json whose command runs a module, which stands for ipykernel, with fcaffe as caffe."""
    lines = re.search(r"^    kernel=.*?^    END$", (ROOT / "docs/pycaffe.md").read_text(), re.DOTALL | re.MULTILINE)
    assert lines
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "fcaffe").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fcaffe "$@"\n')
    (programs / "fcaffe").chmod(0o755)
    (tmp_path / "ipykernel_launcher.py").write_text("import caffe, sys; print(caffe.__version__, sys.argv[1:])")
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "JUPYTER_DATA_DIR": str(tmp_path / "jupyter")}
    subprocess.run(["sh", "-c", textwrap.dedent(lines[0])], env=environment, check=True)
    kernel = json.loads((tmp_path / "jupyter" / "kernels" / "fcaffe" / "kernel.json").read_text())
    command = [word.replace("{connection_file}", "file.json") for word in kernel["argv"]]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "1.0.0 ['-f', 'file.json']\n", done.stderr


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
