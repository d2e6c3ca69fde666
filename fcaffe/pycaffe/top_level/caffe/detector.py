import sys

import fcaffe.pycaffe.detector

sys.modules[__name__] = fcaffe.pycaffe.detector
