"""Caffe's Python interface under Caffe's name: `import caffe` finds this package, whose names are fcaffe's.

Nothing is defined here. A submodule such as `caffe.io` is fcaffe's own module, so a class or a setting is the same
object by whichever name a script has come to it. What takes time to load is loaded when it is asked for.
"""

from __future__ import annotations

from typing import Any

from caffe import proto as proto
from fcaffe.pycaffe import interface
from fcaffe.pycaffe.interface import *  # noqa: F403
from fcaffe.pycaffe.interface import __version__ as __version__
from fcaffe.pycaffe.interface import _caffe as _caffe
from fcaffe.pycaffe.interface import log as log
from fcaffe.pycaffe.interface import pycaffe as pycaffe

# What `from caffe import *` gets: with the names that are loaded late those that Caffe's package has from the start.
__all__ = [
    *interface.__all__,
    *(name for name in interface.LATER if name not in ("coord_map", "draw")),
    *("log", "proto", "pycaffe"),
]


def __getattr__(name: str) -> Any:
    """A name that has not been asked for before, of a module that is loaded late."""
    return interface.load(name, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *interface.LATER})
