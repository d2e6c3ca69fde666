import sys

import fcaffe.pycaffe.interface

sys.modules[__name__] = fcaffe.pycaffe.interface
