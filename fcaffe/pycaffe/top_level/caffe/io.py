import sys

import fcaffe.pycaffe.io

sys.modules[__name__] = fcaffe.pycaffe.io
