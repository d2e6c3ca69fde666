"""What fcaffe uses of CuPy is there: in the stand-in, and in CuPy itself where that can be imported."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import fcaffe
from tests.engines.cuda import stand_in_cupy

ROOTS = {"xp": "cupy", "cupy": "cupy", "_cupy": "cupy"}
PACKAGE = Path(fcaffe.__file__).parent


class Use(NamedTuple):
    """A name such as cupy.add.at, where it is used, and with which keywords it is called, if it is."""

    name: str
    place: str
    keywords: tuple[str, ...]


@cache
def uses() -> list[Use]:
    """All uses in fcaffe, read when a test first asks: each process that collects tests would read them else."""
    return [use for path in sorted(PACKAGE.rglob("*.py")) for use in uses_in(path)]


def uses_in(path: Path) -> Iterator[Use]:
    source = path.read_text()
    if not any(root in source for root in ROOTS):
        return
    nodes = list(ast.walk(ast.parse(source)))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    inner = {id(node.value) for node in attributes}
    calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in attributes:
        if id(node) not in inner and (name := dotted(node)):
            keywords = calls[id(node)].keywords if id(node) in calls else []
            place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
            yield Use(name, place, tuple(each.arg for each in keywords if each.arg))


def dotted(node: ast.expr) -> str:
    """The whole name, from the module on; empty if it does not begin there."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        if node.attr in ROOTS and parts:
            return ".".join([ROOTS[node.attr], *reversed(parts)])
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in ROOTS and parts:
        return ".".join([ROOTS[node.id], *reversed(parts)])
    return ""


def wrong(modules: dict[str, Any]) -> list[str]:
    """The uses that do not go with these modules."""
    found = []
    for name, place, keywords in uses():
        root, *parts = name.split(".")
        value = modules[root]
        try:
            for part in parts:
                value = getattr(value, part)
        except AttributeError:
            found.append(f"{place}: there is no {name}")
            continue
        if inspect.isfunction(value):
            try:
                inspect.signature(value).bind_partial(**dict.fromkeys(keywords))
            except TypeError as problem:
                found.append(f"{place}: {name}: {problem}")
    return found


def test_uses_are_found():
    names = {use.name for use in uses()}
    assert {"cupy.add.at", "cupy.float32", "cupy.cuda.Stream", "cupy.lib.stride_tricks.as_strided"} <= names


def test_the_stand_in_has_them():
    assert not wrong({"cupy": stand_in_cupy.cupy})


def test_cupy_has_them():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    assert not wrong({"cupy": cupy})


def test_what_the_stand_in_has_cupy_has_too():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    for there, here in ((cupy, stand_in_cupy.cupy), (cupy.cuda, stand_in_cupy.cuda)):
        own = {name for name in vars(here) if not name.startswith("_")}
        assert not sorted(name for name in own if not hasattr(there, name))
    methods = {name for name, value in vars(stand_in_cupy.cupy.ndarray).items() if not name.startswith("_")}
    assert not sorted(name for name in methods if not hasattr(cupy.ndarray, name))
    assert isinstance(stand_in_cupy.cupy, ModuleType)
