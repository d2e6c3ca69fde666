"""The log: glog's line format and Caffe's sentences, which DIGITS and users' scripts read.

Every line that Caffe 1.0 prints during a run is called by a name here, and has the source tag that Caffe gives it
(`solver.cpp:239`); a line of fcaffe's own is written by `info`, `warning`, `error` or `fatal`, and carries the Python
file and line that wrote it. `reader.py` reads a training's sentences back.
"""

# ruff: noqa: F403 - a sentence is `log.iteration(...)`, whatever file it stands in

from fcaffe.log.commands import *
from fcaffe.log.data import *
from fcaffe.log.lines import *
from fcaffe.log.net import *
from fcaffe.log.pycaffe import *
from fcaffe.log.sentence import *
from fcaffe.log.solver import *
from fcaffe.log.tools import *
from fcaffe.log.upgrade import *
