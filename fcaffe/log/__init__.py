"""The log: glog's line format and Caffe's sentences, which DIGITS and users' scripts read.

Every line that Caffe 1.0 prints during a run has a function here and Caffe's source tag (`solver.cpp:239`). `info`,
`warning`, `error` and `fatal` write fcaffe's own lines, whose tag is the caller's Python file and line. `reader.py`
reads the log of a training.
"""

# ruff: noqa: F403 - callers write `log.iteration(...)` without the module that defines it

from fcaffe.log.commands import *
from fcaffe.log.data import *
from fcaffe.log.lines import *
from fcaffe.log.net import *
from fcaffe.log.solver import *
from fcaffe.log.upgrade import *
