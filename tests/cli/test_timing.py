"""`fcaffe train --trace` with one worker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

Run = Callable[..., Result]


def test_one_worker_has_a_trace_and_a_summary(run: Run, folder: Path) -> None:
    result = run("train", "--solver", "solver.prototxt", "--trace", "trace.json")
    assert result.code == 0
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    for name in ("forward", "backward", "update"):
        assert [e["args"]["iteration"] for e in events if e["name"] == name] == list(range(8 + (name == "forward")))
    (line,) = [message for message in result.messages if message.startswith("Training took ")]
    whole = float(line.split()[2])
    parts = re.findall(r"(\d+\.\d\d) s \((\d+\.\d)%\)", line)
    assert sum(float(seconds) for seconds, _ in parts) == pytest.approx(whole, abs=0.01 * len(parts))
    assert sum(float(share) for _, share in parts) == pytest.approx(100, abs=0.6)
    assert [path.name for path in folder.glob(".*trace*")] == []


def test_after_an_error_there_is_what_was(run: Run, folder: Path) -> None:
    solver = folder / "solver.prototxt"
    solver.write_text(solver.read_text().replace("base_lr: 0.01", "base_lr: 1e38"))
    assert "not finite" in run("train", "--solver", "solver.prototxt", "--trace", "trace.json").fatal
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert "forward" in {event["name"] for event in events}
