"""Annotations with any values: a record, or one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fcaffe.data.image_list import ListedImage
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.image_sets import READERS, annotated_record

NUMBERS = [0, 1, 8, -1, 0.5, 2**31, 2**63, 10**400, 1e300, float("inf"), float("-inf"), float("nan")]
VALUES = st.sampled_from([*NUMBERS, "4", "x", "", None, True, [], {}, [[]]])
ABSENT = object()
XML = "<a><size><height>{}</height><width>{}</width></size><object><name>{}</name><bndbox><xmin>{}</xmin>"
XML += "<ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object></a>"


@settings(
    deadline=None, max_examples=300, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(kind=st.sampled_from(sorted(READERS)), values=st.lists(VALUES, min_size=8, max_size=8), good=st.integers(0, 255))
def test_any_values(kind: str, values: list[Any], good: int, tmp_path: Path) -> None:
    usual = [8, 8, "1", 1, 1, 4, 4, 0]
    chosen = [u if good >> i & 1 else v for i, (u, v) in enumerate(zip(usual, values, strict=True))]
    height, width, label, *box, crowd = chosen
    one = {"bbox": box, "category_id": label, "iscrowd": crowd}
    content = {
        "json": json.dumps({"image": {"height": height, "width": width}, "annotation": [one]}),
        "xml": XML.format(height, width, label, *box),
        "txt": " ".join(str(each) for each in (label, *box)),
    }[kind]
    (tmp_path / "a").write_text(content)
    record = annotated_record(f"{tmp_path}/", READERS[kind], None if kind == "txt" else {"1": 1, "4": 2})
    try:
        found = record(pb.Datum(), ListedImage("p", "a"), 8, 8)
    except DataError as problem:
        assert str(tmp_path / "a") in str(problem) and "\n" not in str(problem)
    else:
        assert len(found.SerializeToString()) > 0


def test_deep_nesting(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[" * 100_000)
    with pytest.raises(DataError, match="COCO"):
        READERS["json"](str(tmp_path / "a"), 8, 8)
