"""Messages that say what to install name extras that pyproject.toml has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]

# Extras that `all` leaves out: one of the two for GPUs is to be chosen, the others serve work on fcaffe itself.
APART = {"all", "bench", "cuda12", "cuda13", "runtimes", "test"}


def test_hints_name_extras() -> None:
    sources = [path.read_text() for folder in ("fcaffe", "scripts") for path in (ROOT / folder).rglob("*.py")]
    hints = {hint for text in sources for hint in re.findall(r"pip install '(?:fcaffe|\.)\[([\w,]+)\]'", text)}
    known = set(re.findall(r"^(\w+) = \[", EXTRAS, re.MULTILINE))
    assert {"hdf5", "onnx", "plot"} <= hints
    assert {extra for hint in hints for extra in hint.split(",")} <= known
    (everything,) = re.findall(r'^all = \["fcaffe\[(.*)\]"\]', EXTRAS, re.MULTILINE)
    assert set(everything.split(",")) == known - APART
