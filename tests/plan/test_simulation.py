"""One iteration, event by event."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.plan.prediction import Bucket, exposed

times = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


@st.composite
def cases(draw):
    backward = draw(times)
    after = sorted(draw(st.lists(st.integers(0, len(backward) - 1), max_size=6)))
    cut = [Bucket(index + 1, position) for index, position in enumerate(after)]
    seconds = [draw(st.floats(0.0, 2.0)) for _ in cut]
    return draw(st.floats(0.0, 1.0)), backward, cut, seconds


@settings(deadline=None)
@given(cases())
def test_time_lies_between_its_bounds(case):
    forward, backward, cut, costs = case
    with_overlap, without = (exposed(forward, backward, cut, costs, overlap) for overlap in (True, False))
    computing = forward + sum(backward)
    sums = sum(costs)
    assert without == pytest.approx(sums)
    end = computing + with_overlap
    last = costs[-1] if cut and cut[-1].after == len(backward) - 1 else 0.0
    assert max(computing + last, forward + sums if cut else 0.0) <= end + 1e-9
    assert 0 <= with_overlap <= without + 1e-9
