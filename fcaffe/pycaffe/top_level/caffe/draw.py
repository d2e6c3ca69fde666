import sys

import fcaffe.pycaffe.draw

sys.modules[__name__] = fcaffe.pycaffe.draw
