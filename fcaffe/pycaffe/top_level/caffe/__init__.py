"""Caffe's Python interface under Caffe's name: `import caffe` finds this package, whose names are fcaffe's.

Nothing is defined here. A submodule such as `caffe.io` is fcaffe's own module, so a class or a setting is the same
object by whichever name a script has come to it. A submodule that fcaffe lacks, such as `caffe.model_libs` of SSD's
fork, comes from the first package `caffe` in `sys.path` that has it.
"""

import pkgutil
import sys

from caffe import proto as proto
from fcaffe.pycaffe import interface
from fcaffe.pycaffe.interface import *  # noqa: F403
from fcaffe.pycaffe.interface import __version__ as __version__
from fcaffe.pycaffe.interface import _caffe as _caffe
from fcaffe.pycaffe.interface import coord_map as coord_map
from fcaffe.pycaffe.interface import draw as draw
from fcaffe.pycaffe.interface import layers as layers
from fcaffe.pycaffe.interface import log as log
from fcaffe.pycaffe.interface import pycaffe as pycaffe

__path__ = pkgutil.extend_path(__path__, __name__)  # noqa: F405
__all__ = [*interface.__all__, "layers", "log", "proto", "pycaffe"]

for _name in ("_caffe", "classifier", "coord_map", "detector", "draw", "io", "net_spec", "pycaffe"):
    sys.modules[f"{__name__}.{_name}"] = getattr(interface, _name)
