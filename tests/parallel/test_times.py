"""What the log says at the end of where time went."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.parallel.conftest import Job, needs_mpi

pytestmark = pytest.mark.jobs

TABLE_LINE = re.compile(r"\] (\w[\w ]*?) +(\d+\.\d)% +(\d+\.\d\d) +(\d+\.\d\d) +(\d+\.\d\d)$", re.MULTILINE)


@needs_mpi
def test_the_summary_adds_up(start: Callable[..., Job]) -> None:
    job = start("--workers", "3")
    assert job.wait() == 0, job.text[-2000:]
    lines = {line[0]: [float(number) for number in line[1:]] for line in TABLE_LINE.findall(job.text)}
    assert {"forward", "backward", "exposed reduce", "wait for others", "update", "test", "snapshot"} <= set(lines)
    assert sum(line[0] for line in lines.values()) == pytest.approx(100, abs=0.6)
    assert all(line[1] <= line[2] <= line[3] for line in lines.values())
    assert re.search(r"Training took \d+\.\d\d s; seconds of each of 3 workers:\n", job.text)
    assert re.search(r"Slowest worker: rank [012] on \S+, \d+\.\d\d s in forward and backward, ", job.text)
    assert "hidden behind forward and backward" in job.text
