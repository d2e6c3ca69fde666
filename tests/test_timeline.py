"""The bookkeeping of where time goes."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fcaffe.cli.progress import Stragglers, Timing
from fcaffe.jobs.world import World
from fcaffe.timeline import BACKWARD, DATA, EXCHANGE, FORWARD, KINDS, OTHER, WAIT, Event, Timeline, straggler, summarize


def test_own_times_add_up_to_the_whole() -> None:
    timeline = Timeline(10)
    with pytest.raises(ValueError), timeline.span(OTHER):
        with timeline.span(FORWARD), timeline.span(DATA):
            time.sleep(0.01)
        timeline.iteration = 1
        with timeline.span(BACKWARD):
            raise ValueError
    *_, whole = timeline.events
    assert sum(timeline.seconds.values()) == pytest.approx(whole.end - whole.begin)
    assert timeline.seconds[DATA] >= 0.01 > timeline.seconds[FORWARD]
    assert [(event.name, event.iteration) for event in timeline.events] == [
        *((DATA, 0), (FORWARD, 0), (BACKWARD, 1), (OTHER, 0))
    ]


def test_memory_is_bounded() -> None:
    timeline, without = Timeline(3), Timeline()
    for number in range(5):
        for one in (timeline, without):
            one.add(Event("reduce", EXCHANGE, number, number + 1, number))
    assert [event.iteration for event in timeline.events] == [2, 3, 4] and timeline.dropped == 2
    assert not without.events and not without.dropped


def test_the_slowest_worker_is_named() -> None:
    everyone = [dict.fromkeys(KINDS, 0.0) | {FORWARD: work, BACKWARD: 2.0, DATA: 4 - work} for work in (1, 3, 1)]
    lines = summarize(everyone, ["a", "b", "b"])
    assert lines[0] == "Training took 6.00 s; seconds of each of 3 workers:"
    assert lines[3].split() == ["forward", "27.8%", "1.00", "1.00", "3.00"]
    assert lines[-1] == (
        "Slowest worker: rank 1 on b, 5.00 s in forward and backward, 66.7% more than the median; the others waited "
        "0.00 s longer than it"
    )


def test_a_worker_that_is_much_slower_is_warned_of() -> None:
    everyone = [dict.fromkeys(KINDS, 0.0) | {FORWARD: work, WAIT: 30 - work} for work in (10, 25, 11)]
    assert summarize(everyone, ["a", "b", "c"])[-1].endswith("; the others waited 14.50 s longer than it")
    hosts = ["a", "b", "c"]
    slowest, warning = straggler([10, 25, 11], hosts) or (0, "")
    assert slowest == 1
    assert warning.startswith("rank 1 on b computed for 2.3 times as long as the median worker, 25 s, and the others ")
    assert straggler([10, 16, 11], hosts) is None and straggler([10, 17, 11], hosts) is not None, "half as much again"
    assert straggler([1, 5.9, 1], hosts) is None and straggler([1, 6.1, 1], hosts) is not None, "and 5 seconds more"


@pytest.mark.parametrize(("workers", "kept"), [(1, 100_000), (10, 100_000), (50, 20_000)])
def test_a_trace_has_the_end(workers: int, kept: int, tmp_path: Path) -> None:
    timing = Timing(str(tmp_path / "trace.json"), World(rank=0, size=workers, local_rank=0, hosts=("a",) * workers))
    assert timing.timeline.events.maxlen == kept


def test_a_worker_that_becomes_slow_is_warned_of_once(capfd: pytest.CaptureFixture[str]) -> None:
    """The seconds of each worker grow by the same number up to iteration 620, then rank 2 gets slow."""
    workers = SimpleNamespace(rank=0, gather_array=lambda own: np.array([own, own, own + late]))
    solver, timeline, late = SimpleNamespace(workers=workers), Timeline(), 0.0
    stragglers = Stragglers(solver, timeline, ["a", "b", "c"])  # type: ignore[arg-type]
    for solver.iteration in range(1000):
        timeline.seconds[FORWARD] += 1.0
        late = max(0.0, solver.iteration - 620.0)
        stragglers.iteration_begins()
    warnings = [line for line in capfd.readouterr().err.splitlines() if "rank 2 on c computed" in line]
    assert len(warnings) == 1
