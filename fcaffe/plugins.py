"""Imports user code that registers layers, update rules, reductions, compressions and data sources.

A package names such modules as entry points of the group `fcaffe.plugins`; `--import MODULE` names one for a single
run. The launcher passes the flag on to the ranks, so every rank has the same registries.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any

from fcaffe.errors import UsageError

GROUP = "fcaffe.plugins"


def load(modules: Iterable[str]) -> None:
    """Import the modules of all installed entry points, then these `modules`, from the current folder as well.

    Raises UsageError, which names the entry point or the module.
    """
    entries = sorted(entry_points(group=GROUP))
    modules = list(modules)
    if not entries and not modules:
        return
    with contextlib.suppress(ImportError):  # a module that defines a reduction imports MPI, which must not start yet
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = True
    for entry in entries:
        _import(f"the plugin {entry.name} = {entry.value}", entry.load, "mend or uninstall its package")
    if modules and "" not in sys.path:
        sys.path.insert(0, "")
    for module in modules:
        remedy = "correct the name, start in its folder, or add that to PYTHONPATH"
        _import(f"--import {module}", functools.partial(importlib.import_module, module), remedy)


def _import(what: str, load: Callable[[], Any], remedy: str) -> None:
    try:
        load()
    except Exception as problem:
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise UsageError(f"{what} cannot be imported ({reason}); {remedy}") from problem
