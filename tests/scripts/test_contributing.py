"""The examples of docs/contributing.md run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_no_example_is_left_out() -> None:
    tried = {"A layer", "A layer in ONNX", "A fusion", "An update rule", "An engine", "A data source", "A reduction"}
    assert {name for name, text in SECTIONS.items() if "```python" in text} == tried
