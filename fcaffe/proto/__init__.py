"""Caffe's messages: their classes, text and binary files, and bringing older notations up to date."""

from fcaffe.proto.binary import blob_shape, blob_values, read_binary, read_weights, to_blob_proto, write_binary
from fcaffe.proto.files import replacing
from fcaffe.proto.forks import fork_of_layer_type
from fcaffe.proto.text import parse_text, read_net, read_solver, read_text, write_text
from fcaffe.proto.upgrade import upgrade_net, upgrade_solver

__all__ = [
    "blob_shape",
    "blob_values",
    "fork_of_layer_type",
    "parse_text",
    "read_binary",
    "read_net",
    "read_solver",
    "read_text",
    "read_weights",
    "replacing",
    "to_blob_proto",
    "upgrade_net",
    "upgrade_solver",
    "write_binary",
    "write_text",
]
