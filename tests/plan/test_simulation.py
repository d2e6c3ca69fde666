"""One iteration, event by event."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.plan.buckets import Bucket
from fcaffe.plan.reductions import Sum
from fcaffe.plan.simulation import simulate

times = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


@st.composite
def cases(draw):
    backward = draw(times)
    after = sorted(draw(st.lists(st.integers(0, len(backward) - 1), max_size=6)))
    cut = [Bucket(index + 1, place) for index, place in enumerate(after)]
    seconds = [draw(st.floats(0.0, 2.0)) for _ in cut]
    return draw(st.floats(0.0, 1.0)), backward, cut, lambda size: Sum(seconds[size - 1], seconds[size - 1] / 2, ())


@settings(deadline=None)
@given(cases(), st.floats(0.0, 2.0))
def test_time_lies_between_its_bounds(case, busy):
    forward, backward, cut, cost = case
    with_overlap = simulate(forward, backward, cut, cost, overlap=True, busy=busy)
    without = simulate(forward, backward, cut, cost, overlap=False, busy=busy)
    computing = forward + sum(backward)
    sums = sum(cost(bucket.bytes).seconds for bucket in cut)
    assert without.end == pytest.approx(computing + sums)
    assert with_overlap.summing == without.summing == pytest.approx(sums)
    last = cost(cut[-1].bytes).seconds if cut and cut[-1].after == len(backward) - 1 else 0.0
    if busy == 0:
        assert max(computing + last, forward + sums) <= with_overlap.end + 1e-9
        assert with_overlap.end <= without.end + 1e-9
    assert with_overlap.end >= max(computing, forward + sums) - 1e-9
    assert with_overlap.exposed >= 0


@settings(deadline=None)
@given(cases())
def test_sums_follow_one_another_once_their_buckets_are_final(case):
    forward, backward, cut, cost = case
    events = [event for event in simulate(forward, backward, cut, cost).events if event.what.startswith("sum")]
    for event, after in zip(events[1:], events, strict=False):
        assert event.start >= after.end
    lasting = [bucket for bucket in cut if cost(bucket.bytes).seconds]
    for event, bucket in zip(events, lasting, strict=True):
        assert event.start >= forward + sum(backward[: bucket.after + 1]) - 1e-9


def test_sums_that_need_a_busy_core_slow_computing():
    """Half a core for a second, while the worker computes on its only one: half a second more."""
    outcome = simulate(0.0, [1.0, 5.0], [Bucket(4, 0)], lambda size: Sum(1.0, 0.5, ()), busy=1.0)
    assert outcome.backward_end == pytest.approx(6.5)
    assert outcome.exposed == pytest.approx(0.5)
    assert simulate(0.0, [1.0, 5.0], [Bucket(4, 0)], lambda size: Sum(1.0, 0.5, ())).end == pytest.approx(6.0)
