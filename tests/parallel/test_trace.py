"""`--trace`, and what the log says at the end of where time went."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.parallel.conftest import Job, needs_mpi

pytestmark = pytest.mark.jobs

Start = Callable[..., Job]
ITERATIONS = 8
TABLE_LINE = re.compile(r"\] (\w[\w ]*?) +(\d+\.\d)% +(\d+\.\d\d) +(\d+\.\d\d) +(\d+\.\d\d)$", re.MULTILINE)


def spans(path: Path, rank: int, thread: int = 0) -> list[dict[str, Any]]:
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if (event["ph"], event["pid"], event["tid"]) == ("X", rank, thread)]


def names(path: Path) -> dict[tuple[int, int, str], str]:
    events = json.loads(path.read_text())["traceEvents"]
    return {(e["pid"], e["tid"], e["name"]): e["args"].get("name") for e in events if e["ph"] == "M"}


def assert_nested(spans: list[dict[str, Any]]) -> None:
    """Each span is within the one before or after it."""
    ends = [float("inf")]
    for span in spans:
        while span["ts"] >= ends[-1] - 0.1:  # times are rounded to 0.1 us
            ends.pop()
        assert span["ts"] + span["dur"] <= ends[-1] + 0.3
        ends.append(span["ts"] + span["dur"])


def iterations(spans: list[dict[str, Any]], name: str) -> list[int]:
    return [span["args"]["iteration"] for span in spans if span["name"] == name]


@needs_mpi
@pytest.mark.parametrize("flags", [["--bucket-mb", "0.0001"], []])
def test_every_rank_has_its_spans(start: Start, folder: Path, flags: list[str]) -> None:
    job = start("--workers", "3", "--trace", "trace.json", "--reduce", "tree", *flags)
    assert job.wait() == 0, job.text[-2000:]
    path, every = folder / "trace.json", list(range(ITERATIONS))
    exchange = len(flags) // 2  # on one host sums wait for the end of backward, unless --bucket-mb is given
    named = names(path)
    for rank in range(3):
        assert re.fullmatch(rf"rank {rank} on \S+", named[rank, 0, "process_name"])
        assert named[rank, 0, "thread_name"] == "training"
        training = spans(path, rank)
        assert_nested(training)
        for name in ("backward", "update"):
            assert iterations(training, name) == every
        exposed = iterations(training, "exposed reduce")  # with overlap not where all was summed in time
        assert exposed == (sorted({*exposed} & {*every}) if exchange else every)
        assert iterations(training, "forward") == [*every, ITERATIONS]  # whose loss is displayed
        assert set(iterations(training, "test")) == {0, 4, 8}
        assert set(iterations(training, "snapshot")) == {4, 8}
        assert len(iterations(training, "data wait")) >= ITERATIONS
        reductions = spans(path, rank, exchange)
        reductions = [span for span in reductions if span["name"] == "reduce"]
        assert sorted(set(iterations(reductions, "reduce"))) == every
        assert all(before["ts"] + before["dur"] <= after["ts"] + 0.3 for before, after in pairwise(reductions))
    assert json.loads(path.read_text())["otherData"]["summary"][-1].startswith("Slowest worker: rank ")
    whole = [max(span["dur"] for span in spans(path, rank) if span["name"] == "other") for rank in range(3)]
    assert max(whole) - min(whole) < 1e6, "they begin and end together"


@needs_mpi
def test_the_summary_adds_up(start: Start) -> None:
    job = start("--workers", "3")
    assert job.wait() == 0, job.text[-2000:]
    lines = {line[0]: [float(number) for number in line[1:]] for line in TABLE_LINE.findall(job.text)}
    assert {"forward", "backward", "exposed reduce", "wait for others", "update", "test", "snapshot"} <= set(lines)
    assert sum(line[0] for line in lines.values()) == pytest.approx(100, abs=0.6)
    assert all(line[1] <= line[2] <= line[3] for line in lines.values())
    assert re.search(r"Training took \d+\.\d\d s; seconds of each of 3 workers:\n", job.text)
    assert re.search(r"Slowest worker: rank [012] on \S+, \d+\.\d\d s in forward and backward, ", job.text)
    assert "hidden behind forward and backward" in job.text


@needs_mpi
def test_a_trace_that_cannot_be_written_is_refused_at_once(start: Start, folder: Path) -> None:
    job = start("--workers", "2", "--trace", "none/trace.json")
    assert job.wait() == 134
    assert len(job.fatal) == 1 and "cannot write none/trace.json: the folder" in job.fatal[0]
    assert not list(folder.glob("*.caffemodel")) and "Creating training net" not in job.text
