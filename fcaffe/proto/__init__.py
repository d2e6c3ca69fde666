"""Caffe's messages: classes, text and binary files, and upgrades of older notations."""

from fcaffe.proto.binary import (
    binary_class,
    check_written,
    file_start,
    is_text,
    read_binary,
    read_blob,
    write_binary,
)
from fcaffe.proto.blobs import StoredBlob, blob_shape, stored_blob, stored_to_proto, to_blob_proto
from fcaffe.proto.forks import without_fork_fields
from fcaffe.proto.text import parse_text, read_net, read_solver, read_text, text_of, write_text
from fcaffe.proto.upgrade import net_is_current, upgrade_net, upgrade_solver

__all__ = [
    "StoredBlob",
    "binary_class",
    "blob_shape",
    "check_written",
    "file_start",
    "is_text",
    "net_is_current",
    "parse_text",
    "read_binary",
    "read_blob",
    "read_net",
    "read_solver",
    "read_text",
    "stored_blob",
    "stored_to_proto",
    "text_of",
    "to_blob_proto",
    "upgrade_net",
    "upgrade_solver",
    "without_fork_fields",
    "write_binary",
    "write_text",
]
