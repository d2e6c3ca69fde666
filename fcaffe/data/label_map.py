"""Label maps: prototxts of SSD that name the classes of a detector."""

from __future__ import annotations

from typing import Any

from fcaffe.errors import DataError, ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_text


def read_label_map(path: str) -> dict[int, Any]:
    """The LabelMapItems (label, name, display_name) of a file by label. Raises DataError, also for repeated labels."""
    try:
        items = read_text(path, pb.LabelMap).item
    except ProtoError as problem:
        raise DataError(f"cannot read a label map: {problem}") from problem
    found: dict[int, Any] = {}
    for item in items:
        if found.setdefault(item.label, item) is not item:
            raise DataError(f"{path}: label {item.label} has two names, {found[item.label].name} and {item.name}")
    return found
