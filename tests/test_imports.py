"""Who imports whom: no circle, each folder only what stands above it in docs/design.md, and the forks as a plugin."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from fcaffe.moved import MOVED

ROOT = Path(__file__).parents[1]


def modules(root: Path) -> dict[str, Path]:
    """The files of fcaffe by the names of their modules; `fcaffe.net` is fcaffe/net/__init__.py."""
    files = ((path.relative_to(root).with_suffix("").parts, path) for path in sorted(root.glob("fcaffe/**/*.py")))
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for parts, path in files}


def imported(source: str) -> Iterator[str]:
    """What a module imports, wherever in it that stands: "a.b", or "a.b.c" of what is taken from there."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "import_module":
            yield from (str(word.value) for word in node.args if isinstance(word, ast.Constant))


@functools.cache
def imports(root: Path) -> dict[str, set[str]]:
    """The modules that each module imports. A name that is no module is taken from the one before the last dot."""
    found = modules(root)
    graph: dict[str, set[str]] = {}
    for module, path in found.items():
        names = (name if name in found else name.rpartition(".")[0] for name in imported(path.read_text()))
        graph[module] = {name for name in names if name in found}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of a circle, one of several; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def folders() -> list[str]:
    """The top folders in docs/design.md's table, in its order, as packages."""
    table = re.findall(r"^\| `fcaffe/(\w+)/` \|", (ROOT / "docs" / "design.md").read_text(), flags=re.MULTILINE)
    return [f"fcaffe.{name}" for name in table]


def folder_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle(imports(ROOT)) == []


def test_a_folder_imports_only_from_those_above_it() -> None:
    order, graph = folders(), imports(ROOT)
    assert {folder_of(module) for module, path in modules(ROOT).items() if path.parents[1] != ROOT} == set(order)
    users: dict[str, set[str]] = {}
    for module, names in graph.items():
        for name in names:
            users.setdefault(name, set()).add(folder_of(module))
    for module, names in graph.items():
        folder = folder_of(module)
        if folder in order:
            allowed = order[: order.index(folder) + 1]
        else:  # a file beside the folders stands above the first of them that imports it
            allowed = order[: min((order.index(user) for user in users.get(module, ()) if user in order), default=None)]
        below = {name for name in names if folder_of(name) in order and folder_of(name) not in allowed}
        assert not below, f"{module} imports {below}"


def test_the_layers_of_forks_are_a_plugin() -> None:
    """Nothing imports them, and they import what docs/contributing.md names for plugins."""
    (table,) = re.findall(r"^\| modules \| use \|\n(.*?)\n\n", (ROOT / "docs/contributing.md").read_text(), re.S | re.M)
    public = set(re.findall(r"`([\w.]+)`", table))
    folders = "fcaffe.forks", "fcaffe.data", "fcaffe.proto", "fcaffe.log", "fcaffe.onnx"
    for module, names in imports(ROOT).items():
        if folder_of(module) == "fcaffe.forks":
            assert not {name for name in names if folder_of(name) not in folders} - public, module
            private = [name for name in imported(modules(ROOT)[module].read_text()) if "._" in name]
            assert not private, f"{module} imports {private}"
        else:
            assert "fcaffe.forks" not in {folder_of(name) for name in names}, module


def test_modules_are_found_by_their_former_names() -> None:
    for former, present in MOVED.items():
        assert import_module(former) is import_module(present)
    assert import_module("fcaffe.tools.onnx.reading.graph") is import_module("fcaffe.onnx.reading.graph")
    with pytest.raises(ModuleNotFoundError):
        import_module("fcaffe.net.never")
