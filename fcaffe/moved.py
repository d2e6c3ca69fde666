"""Former names of modules, by which plugins and scripts may still import them.

`import fcaffe` puts `FormerNames` in front of Python's finders. An import by a former name gives the module itself, so
what the module registers is registered once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_GROUPS = {
    "net.build": ("filter", "graph", "redistribute", "splits"),
    "net.run": ("arena", "program", "replay", "rewrite"),
    "net.script": ("engine_lock", "host_arrays", "on_demand"),
    "onnx.writing": (
        *("convolution", "elementwise", "export", "graph", "normalization", "pooling", "preprocessing"),
        *("recurrent", "refused", "shape"),
    ),
}
MOVED = {  # with all modules below them
    **{
        f"fcaffe.{group.partition('.')[0]}.{name}": f"fcaffe.{group}.{name}"
        for group, names in _GROUPS.items()
        for name in names
    },
    "fcaffe.net.build.shards": "fcaffe.solvers.shards",
    "fcaffe.net.plan": "fcaffe.net.run",
    "fcaffe.net.shards": "fcaffe.solvers.shards",
    "fcaffe.layers.forks": "fcaffe.forks",
    "fcaffe.proto.upgrade_forks": "fcaffe.forks.notations",
    "fcaffe.tools.check_conversion": "fcaffe.onnx.check_conversion",
    "fcaffe.tools.convert": "fcaffe.onnx.convert",
    "fcaffe.tools.onnx.detection": "fcaffe.forks.onnx_detection",
    "fcaffe.tools.onnx.forks": "fcaffe.forks.onnx",
    "fcaffe.tools.onnx": "fcaffe.onnx",
}


class FormerNames:
    """Finder and loader of modules by their former names."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, cls) if present_name(name) != name else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Python creates a module, which `exec_module` replaces."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(present_name(module.__name__))


def present_name(name: str) -> str:
    if name.startswith("fcaffe."):
        for former, present in MOVED.items():
            if name == former or name.startswith(f"{former}."):
                return present + name[len(former) :]
    return name
