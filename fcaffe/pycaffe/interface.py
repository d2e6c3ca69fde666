"""The names of Caffe's Python interface: what a script finds in `caffe`, and in `fcaffe`."""

from __future__ import annotations

import sys

from fcaffe.pycaffe import classifier, detector, io, net_spec, session, solver
from fcaffe.pycaffe import coord_map as coord_map  # not in __all__, as in Caffe
from fcaffe.pycaffe import draw as draw
from fcaffe.pycaffe.blob import Blob, BlobVec
from fcaffe.pycaffe.classifier import Classifier
from fcaffe.pycaffe.detector import Detector
from fcaffe.pycaffe.layer import Layer
from fcaffe.pycaffe.net import Net
from fcaffe.pycaffe.net_spec import NetSpec, params, to_proto
from fcaffe.pycaffe.net_spec import layers as layers  # not in __all__, as fcaffe.layers is a package
from fcaffe.pycaffe.session import *  # noqa: F403
from fcaffe.pycaffe.session import log as log  # not in __all__, as fcaffe.log is the log itself
from fcaffe.pycaffe.solver import *  # noqa: F403

__version__ = "1.0.0"  # of the Caffe whose interface this is
_caffe = pycaffe = sys.modules[__name__]  # where Caffe defines them: scripts ask for caffe._caffe.BlobVec

__all__ = [
    "Blob",
    "BlobVec",
    "Classifier",
    "Detector",
    "Layer",
    "Net",
    "NetSpec",
    "classifier",
    "detector",
    "io",
    "net_spec",
    "params",
    "to_proto",
]
__all__ += session.__all__
__all__ += solver.__all__
