"""What messages say that is to be installed is what pyproject.toml knows: its extras, and packages in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOML = (ROOT / "pyproject.toml").read_text()
UNKNOWN = "\0"  # in place of what a message gets only when it is written

# CUDA's own, which the extras name as parts of cuda-toolkit
OF_CUDA = {"nvidia-cublas", "nvidia-cuda-nvrtc"}
# Extras that `all` leaves out: one of the two for GPUs is to be chosen, the others serve work on fcaffe itself.
APART = {"all", "bench", "cuda12", "cuda13", "runtimes", "test"}


def section(name: str) -> str:
    return TOML.partition(f"[{name}]")[2].partition("\n[")[0]


def extras() -> dict[str, set[str]]:
    """The packages in each extra, by name, and in "" those that fcaffe always needs."""
    text = re.sub(r"\s+#.*", "", section("project.optional-dependencies"))
    found = {name: text_of for name, text_of in re.findall(r"^(\w+) = (\[.*?\])$", text, re.MULTILINE | re.DOTALL)}
    found[""] = re.findall(r"^dependencies = (\[.*?^\])", TOML, re.MULTILINE | re.DOTALL)[0]
    return {name: {re.split(r"[^\w-]", one)[0] for one in re.findall(r'"(.*?)"', text)} for name, text in found.items()}


def messages(source: str) -> Iterator[str]:
    """The strings of a module, with UNKNOWN for what f-strings put in."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    inner = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else UNKNOWN for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner:
            yield node.value


def hints() -> list[tuple[str, str]]:
    """(file, what stands behind `pip install`) of every message."""
    paths = [
        *sorted((ROOT / "fcaffe").rglob("*.py")),
        *(p for p in sorted((ROOT / "scripts").rglob("*")) if p.is_file()),
    ]
    found = []
    for path in paths:
        source = path.read_text(errors="replace")
        if "pip" in source and (path.suffix == ".py" or source.startswith("#!/usr/bin/env python3")):
            for text in messages(source):
                text = " ".join(text.split())
                found += [(path.name, hint) for hint in re.findall(r"pip install ([^;:()]*)", text)]
    return found


HINTS = hints()


def words(hint: str) -> Iterator[str]:
    """The requirements that a hint names, up to where the sentence goes on."""
    for word in hint.split():
        if word in ("and", "&&"):
            return
        if not word.startswith("-"):
            yield word.rstrip(".,").strip("'\"")
        if word.endswith(","):
            return


def test_there_are_hints() -> None:
    assert len(HINTS) >= 15 and ("library.py", "'fcaffe[hdf5]' ") in HINTS


@pytest.mark.parametrize(("file", "hint"), HINTS, ids=[f"{file}: {hint}".replace(UNKNOWN, "?") for file, hint in HINTS])
def test_each_names_extras_and_packages_that_there_are(file: str, hint: str) -> None:
    known = extras()
    packages = set().union(*known.values()) | OF_CUDA
    named = list(words(hint))
    assert named, "it says what to install"
    for word in named:
        if match := re.fullmatch(r"(?:fcaffe|\.)\[(.*)\]", word):
            for extra in match[1].split(","):
                pattern = re.escape(extra).replace(re.escape(UNKNOWN), r"\w+")
                assert any(re.fullmatch(pattern, name) for name in known if name), f"{extra} is an extra"
        else:
            name = re.split(r"[<>=]=", word)[0]
            pattern = re.escape(name).replace(re.escape(UNKNOWN), r"[\w-]+")
            assert name == UNKNOWN or any(re.fullmatch(pattern, package) for package in packages), (
                f"{name} is a package"
            )


def test_the_extra_all_has_the_others() -> None:
    text = re.findall(r'^all = \["fcaffe\[(.*)\]"\]', section("project.optional-dependencies"), re.MULTILINE)[0]
    assert set(text.split(",")) == extras().keys() - APART - {""}
