import sys

import fcaffe.proto.caffe_pb2

sys.modules[__name__] = fcaffe.proto.caffe_pb2
