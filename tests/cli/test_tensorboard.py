"""Curves for TensorBoard, read back from the file of events."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

Run = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("folder")


def test_all_curves_are_there(run: Run) -> None:
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2", reason="needs the extra fcaffe[tensorboard]")
    assert run("train -solver solver.prototxt -tensorboard events").code == 0
    (path,) = Path("events").iterdir()
    content, offset, found = path.read_bytes(), 0, {}
    while offset < len(content):
        (length,) = struct.unpack_from("<Q", content, offset)
        event = event_pb2.Event.FromString(content[offset + 12 : offset + 12 + length])
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(event.step)
        offset += length + 16
    assert found.pop("train/loss") == found.pop("train/lr") == list(range(1, 9))
    assert found and all(tag.startswith("test/") and steps == [0, 4, 8] for tag, steps in found.items())
