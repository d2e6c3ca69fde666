"""The examples of docs/contributing.md run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import NET, SOLVER, write_records
from tests.parallel.conftest import MPIEXEC, needs_mpi

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "contributing.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE))


def code(*sections: str) -> str:
    found = [re.findall(r"^```python\n(.*?)^```", SECTIONS[name], re.DOTALL | re.MULTILINE) for name in sections]
    assert all(found)
    return "\n".join(block for blocks in found for block in blocks)


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "sections", [["A layer", "A layer in ONNX", "A fusion", "An update rule", "An engine"], ["A data source"]]
)
def test_the_examples_run(sections: list[str]) -> None:
    run(sys.executable, "-c", code(*sections))


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 5, 6])
def test_the_reduction_adds_up(ranks: int) -> None:
    run(str(MPIEXEC), "-n", str(ranks), sys.executable, "-m", "mpi4py", "-c", code("A reduction"))


# A module of somebody else's package: the examples' classes, and a compression.
PLUGIN = """
from fcaffe.parallel.compression import register as register_compression
from fcaffe.parallel.compression.sixteen_bit import Fp16

@register_compression
class Half(Fp16):
    name = "half"
"""


@needs_mpi
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--import", "mine.parts", "--workers", "2", "--reduce", "torus"], "2 workers on 1 host"),
        (["--workers", "2", "--compress", "half"], "2 workers on 1 host"),  # by its entry point
        (["--reduce", "torus"], "Optimization Done."),
    ],
)
def test_a_package_outside_the_repository(flags: list[str], expected: str, tmp_path: Path) -> None:
    """Every rank knows its layer, update rule, reduction, compression and source of data."""
    folder = tmp_path
    write_records(str(folder / "lmdb"), [0, 1, 2] * 4)
    ends = {
        "A layer": "\0",
        "An update rule": "SOLVER",
        "A reduction": "comm = MPI",
        "A data source": "import tempfile",
    }
    classes = [code(name).partition(end)[0] for name, end in ends.items()]
    (folder / "mine").mkdir()
    (folder / "mine" / "__init__.py").write_text("")
    (folder / "mine" / "parts.py").write_text("\n".join([*classes, PLUGIN]))
    if "--import" not in flags:
        (folder / "mine-1.0.dist-info").mkdir()
        (folder / "mine-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        (folder / "mine-1.0.dist-info" / "entry_points.txt").write_text("[fcaffe.plugins]\nparts = mine.parts\n")
    net = NET.replace('Loss" bottom: "ip"', 'Loss" bottom: "sign"')
    net = net.replace(
        'layer { name: "loss"', 'layer { name: "sign" type: "Softsign" bottom: "ip" top: "sign" }\nlayer { name: "loss"'
    )
    (folder / "net.prototxt").write_text(net)
    (folder / "solver.prototxt").write_text(SOLVER + 'type: "Lion"')
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fcaffe", "train", "--solver", "solver.prototxt", *flags]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and expected in done.stderr, done.stderr[-2000:]


def test_modules_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    for name in ("broken", "missing"):
        command = [sys.executable, "-m", "fcaffe", "train", "--import", name]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 134 and f"--import {name} cannot be imported (ModuleNotFoundError" in done.stderr
        assert done.stderr.count("\n") == 1


def test_no_example_is_left_out() -> None:
    tried = {"A layer", "A layer in ONNX", "A fusion", "An update rule", "An engine", "A data source", "A reduction"}
    assert {name for name, text in SECTIONS.items() if "```python" in text} == tried
