"""Imports user code that registers layers, update rules, reductions, compressions and data sources.

A package names such modules as entry points of the group `fcaffe.plugins`; `--import MODULE` names one for a single
run. The launcher passes the flag on to the ranks, so every rank has the same registries.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from fcaffe.errors import UsageError
from fcaffe.python_path import add_current_folder

GROUP = "fcaffe.plugins"
OWN = "fcaffe.forks"


def load_own(part: str = "") -> None:
    """Import the plugin that fcaffe always has, what Caffe's forks add, or the module `part` of it.

    `fcaffe.layers` calls this for the types of layers, `fcaffe.proto` for the part "notations" and `fcaffe.onnx` for
    the part "onnx".
    """
    importlib.import_module(f"{OWN}.{part}".rstrip("."))


def load(modules: Iterable[str]) -> None:
    """Import the modules of all installed entry points, then these `modules`, from the current folder as well.

    Raises UsageError, which names the entry point or the module.
    """
    entries = _entry_points()
    modules = list(modules)
    if not entries and not modules:
        return
    with contextlib.suppress(ImportError):  # a module that defines a reduction imports MPI, which must not start yet
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = True
    for entry in entries:
        _import(f"the plugin {entry.name} = {entry.value}", entry.load, "mend or uninstall its package")
    if modules:
        add_current_folder()
    for module in modules:
        remedy = "correct the name, start in its folder, or add that to PYTHONPATH"
        _import(f"--import {module}", functools.partial(importlib.import_module, module), remedy)


def _entry_points() -> list[Any]:
    """The entry points of the group.

    `importlib.metadata` takes as long to load as all of NumPy, so it is loaded only if a package may have some: if a
    file of entry points names the group, or if `sys.path` has an archive.
    """
    folders = [os.path.abspath(folder) for folder in sys.path]
    patterns = (os.path.join(glob.escape(folder), "*-info", "entry_points.txt") for folder in folders)
    files = (file for pattern in patterns for file in glob.glob(pattern))
    if not any(map(os.path.isfile, folders)) and not any(map(_names_group, files)):
        return []
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP))


def _names_group(file: str) -> bool:
    with contextlib.suppress(OSError), open(file, "rb") as content:
        return GROUP.encode() in content.read()
    return False


def _import(what: str, load: Callable[[], Any], remedy: str) -> None:
    try:
        load()
    except Exception as problem:
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise UsageError(f"{what} cannot be imported ({reason}); {remedy}") from problem
