"""Caffe's messages: classes, text and binary files, and upgrades of older notations."""

from fcaffe.proto.binary import write_binary
from fcaffe.proto.blobs import StoredBlob
from fcaffe.proto.text import parse_text, read_net, read_solver, write_text

__all__ = ["StoredBlob", "parse_text", "read_net", "read_solver", "write_binary", "write_text"]
