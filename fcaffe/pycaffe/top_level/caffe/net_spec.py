import sys

import fcaffe.pycaffe.net_spec

sys.modules[__name__] = fcaffe.pycaffe.net_spec
