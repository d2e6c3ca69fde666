"""One iteration, event by event."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.plan.prediction import Bucket, simulate
from fcaffe.plan.reductions import Sum

times = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


@st.composite
def cases(draw):
    backward = draw(times)
    after = sorted(draw(st.lists(st.integers(0, len(backward) - 1), max_size=6)))
    cut = [Bucket(index + 1, position) for index, position in enumerate(after)]
    seconds = [draw(st.floats(0.0, 2.0)) for _ in cut]
    return draw(st.floats(0.0, 1.0)), backward, cut, [Sum(each, ()) for each in seconds]


@settings(deadline=None)
@given(cases())
def test_time_lies_between_its_bounds(case):
    forward, backward, cut, costs = case
    with_overlap = simulate(forward, backward, cut, costs, overlap=True)
    without = simulate(forward, backward, cut, costs, overlap=False)
    computing = forward + sum(backward)
    sums = sum(cost.seconds for cost in costs)
    assert without.end == pytest.approx(computing + sums)
    assert with_overlap.summing == without.summing == pytest.approx(sums)
    last = costs[-1].seconds if cut and cut[-1].after == len(backward) - 1 else 0.0
    assert max(computing + last, forward + sums) <= with_overlap.end + 1e-9
    assert with_overlap.end <= without.end + 1e-9
    assert with_overlap.end >= max(computing, forward + sums) - 1e-9
    assert with_overlap.exposed >= 0
