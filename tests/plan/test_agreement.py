"""What the plan says of fcaffe's own exchange is what that does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.plan.prediction import buckets

offsets = st.lists(st.integers(0, 3 << 20), min_size=1, max_size=40).map(sorted)  # in floats


@settings(deadline=None)
@given(offsets, st.integers(1, 1 << 20), st.sampled_from([None, 1 << 20, 3 << 20]))
def test_buckets_are_those_of_the_exchange(starts, last, size):
    pytest.importorskip("mpi4py")
    from mpi4py import MPI

    from fcaffe.parallel.exchange import ReducingExchange
    from fcaffe.parallel.reductions.reduction import Null

    total = starts[-1] + last
    starts[0] = 0
    reduction = Null(MPI.COMM_SELF)
    exchange = ReducingExchange(reduction, size, overlap=False)
    exchange.begin(np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (total,), (4,)))
    for start in reversed(starts):
        exchange.ready(start)
    exchange._hand_over(0)
    expected = [bucket.bytes for bucket in buckets(4 * total, [4 * start for start in reversed(starts)], 1, size)]
    assert expected == exchange.cut
    reduction.close()


@settings(deadline=None)
@given(offsets, st.integers(1, 1 << 20))
def test_buckets_hold_all_gradients_once(starts, last):
    starts[0] = 0
    total = 4 * (starts[-1] + last)
    final = [4 * start for start in reversed(starts)]
    cut = list(buckets(total, final, 8))
    assert sum(bucket.bytes for bucket in cut) == total
    assert [bucket.after for bucket in cut] == sorted(bucket.after for bucket in cut)
    end = total
    for bucket in cut:
        end -= bucket.bytes
        assert final[bucket.after] <= end
