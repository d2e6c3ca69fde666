import sys

import fcaffe.pycaffe.coord_map

sys.modules[__name__] = fcaffe.pycaffe.coord_map
