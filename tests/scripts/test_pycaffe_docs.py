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

import pytest

ROOT = Path(__file__).resolve().parents[2]


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
