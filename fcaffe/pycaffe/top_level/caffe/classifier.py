import sys

import fcaffe.pycaffe.classifier

sys.modules[__name__] = fcaffe.pycaffe.classifier
