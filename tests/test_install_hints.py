"""Messages and documents that say what to install: packages of an index, or extras of this repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text()
EXTRAS = PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]

# Extras that `all` leaves out: one of the two for GPUs is to be chosen, the others serve work on fcaffe itself.
APART = {"all", "bench", "cuda12", "cuda13", "runtimes", "test"}
INDEX = {"fissix", "ipykernel", "onnx2torch", "scipy", "scikit-image", "selective_search_ijcv_with_python"}


def test_hints_name_extras_of_the_repository_or_packages_of_the_index() -> None:
    """fcaffe itself is on no index, so nothing says `pip install fcaffe`."""
    files = [path for folder in ("fcaffe", "scripts", "docs") for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [
        path.read_text(errors="replace") for path in [*files, ROOT / "README.md"] if path.suffix in (".py", ".md", "")
    ]
    assert not [hint for text in texts for hint in re.findall(r"pip install '?fcaffe\b.{9}", text)]
    hints = {hint for text in texts for hint in re.findall(r"pip install (?:-e )?'\.\[([\w,]+)\]'", text)}
    known = set(re.findall(r"^(\w+) = \[", EXTRAS, re.MULTILINE))
    assert "all" in hints and {extra for hint in hints for extra in hint.split(",")} <= known
    (everything,) = re.findall(r'^all = \["fcaffe\[(.*)\]"\]', EXTRAS, re.MULTILINE)
    assert set(everything.split(",")) == known - APART


def test_errors_name_packages_of_the_extras() -> None:
    wanted = {name.lower() for name in re.findall(r'"([\w-]+)(?:\[[\w,]+\])?[<>=~!;" ]', EXTRAS + PROJECT)}
    named = set()
    for path in (ROOT / "fcaffe").rglob("*.py"):
        for words in re.findall(r"pip install ((?:[a-z][\w.-]*\w ?)+)", path.read_text()):
            named |= set(words.split()[:1])
    assert {"h5py", "onnx", "matplotlib", "opencv-python-headless", "numba"} <= named
    assert {name.lower() for name in named} <= wanted | INDEX, named - wanted
