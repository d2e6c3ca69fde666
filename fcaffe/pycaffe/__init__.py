"""Caffe's Python interface over fcaffe's nets and solvers, which scripts for pycaffe expect; `interface` has its names.

Importing this package fills the registry of layer types, that of the user's Python layers included.
"""

from fcaffe import layers  # noqa: F401 - registers the types of layers
from fcaffe.pycaffe import python  # noqa: F401 - registers Python
