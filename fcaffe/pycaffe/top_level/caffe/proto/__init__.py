"""Caffe's messages, under the name that scripts import."""

import sys

from fcaffe.proto import caffe_pb2 as caffe_pb2

sys.modules[f"{__name__}.caffe_pb2"] = caffe_pb2
