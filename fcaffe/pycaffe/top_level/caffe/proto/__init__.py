"""Where scripts look for Caffe's messages."""

from caffe.proto import caffe_pb2 as caffe_pb2
