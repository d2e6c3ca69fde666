"""The bookkeeping of where time goes."""

from __future__ import annotations

import time

import pytest

from fcaffe.timeline import BACKWARD, DATA, FORWARD, KINDS, OTHER, WAIT, Timeline, summarize


def test_own_times_add_up_to_the_whole() -> None:
    timeline, began = Timeline(), time.perf_counter()
    with pytest.raises(ValueError), timeline.span(OTHER):
        with timeline.span(FORWARD), timeline.span(DATA):
            time.sleep(0.01)
        with timeline.span(BACKWARD):
            raise ValueError
    assert 0.01 <= sum(timeline.seconds.values()) <= time.perf_counter() - began
    assert timeline.seconds[DATA] >= 0.01 > timeline.seconds[FORWARD]


def test_the_slowest_worker_is_named() -> None:
    everyone = [dict.fromkeys(KINDS, 0.0) | {FORWARD: work, BACKWARD: 2.0, DATA: 4 - work} for work in (1, 3, 1)]
    lines = summarize(everyone, ["a", "b", "b"])
    assert lines[0] == "Training took 6.00 s; seconds of each of 3 workers:"
    assert lines[3].split() == ["forward", "27.8%", "1.00", "1.00", "3.00"]
    assert lines[-1] == (
        "Slowest worker: rank 1 on b, 5.00 s in forward and backward, 66.7% more than the median; the others waited "
        "0.00 s longer than it"
    )


def test_how_long_the_others_waited_is_told() -> None:
    everyone = [dict.fromkeys(KINDS, 0.0) | {FORWARD: work, WAIT: 30 - work} for work in (10, 25, 11)]
    assert summarize(everyone, ["a", "b", "c"])[-1].endswith("; the others waited 14.50 s longer than it")
