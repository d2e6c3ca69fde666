"""fcaffe: FireCaffe for today's machines. `import fcaffe as caffe` drives nets and solvers from a script.

Importing the package loads next to nothing, and changes nothing in the process except that modules of fcaffe are also
found by their former names (`moved.py`). Each name is loaded at its first use.
So the command line can set the number of threads before NumPy's libraries load, and a program that uses fcaffe as a
library keeps its own settings. `__init__.pyi` has the types.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from fcaffe.moved import FormerNames

__version__ = "0.1.0"
sys.meta_path.insert(0, FormerNames)


def __getattr__(name: str) -> Any:
    """Load a module of this package, or a name of pycaffe, at its first use."""
    if not name.startswith("_"):
        from importlib.util import find_spec  # slow to load

        if find_spec(f"{__name__}.{name}") is not None:
            return importlib.import_module(f"{__name__}.{name}")
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Predictor":
        from fcaffe.tools.predictor import Predictor

        return Predictor
    interface = importlib.import_module("fcaffe.pycaffe.interface")
    names = [*interface.__all__, "layers"]
    if name != "__all__" and name not in (*names, "coord_map", "draw", "_caffe"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = names if name == "__all__" else getattr(interface, name)
    return found


def __dir__() -> list[str]:
    interface = importlib.import_module("fcaffe.pycaffe.interface")
    return sorted({*globals(), *interface.__all__, "coord_map", "draw"})
