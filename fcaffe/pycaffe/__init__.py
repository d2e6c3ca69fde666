"""Caffe's Python interface over fcaffe's nets and solvers, which scripts for pycaffe expect; `interface` has its names.

Importing this package declares all layer types, also that of the user's Python layers.
"""

from fcaffe import layers  # noqa: F401 - declares the types of layers
from fcaffe.net.registry import declare

declare(__name__, {"python": "Python"})
