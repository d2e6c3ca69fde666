"""Numbers that travel behind the gradients arrive as they were sent, in whatever order these are added up."""

from __future__ import annotations

import numpy as np
import pytest

from fcaffe.parallel.riders import Riders
from tests.parallel.conftest import needs_mpi

ODD = [0.0, -0.0, 1 / 3, -1e30, 1e-20, 5e-324, 1e300, 2.0**60 + 2.0**8, np.inf, -np.inf, np.nan, 3, 2.3025851249694824]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("fewer", [0, 4])
def test_they_arrive_as_they_are(ranks: int, fewer: int) -> None:
    random = np.random.default_rng(ranks)
    tails = np.full((ranks, Riders.size(len(ODD), ranks)), 7, np.float32)
    riders = [Riders(tail, rank, ranks) for rank, tail in enumerate(tails)]
    for _ in range(3):
        sent = np.array([random.permutation(ODD) for _ in range(ranks)])[:, : len(ODD) - fewer]
        for one, numbers in zip(riders, sent, strict=True):
            one.put(numbers)
        with np.errstate(invalid="ignore"):
            tails[...] = tails[random.permutation(ranks)].sum(axis=0, dtype=np.float32)
        for one in riders:
            arrived = one.take()
            expected = np.where(abs(sent) < 1e-40, 0, np.where(sent == 1e300, np.inf, sent))  # float32's range
            np.testing.assert_array_equal(arrived[:, : sent.shape[1]], expected)
            assert not arrived[:, sent.shape[1] :].any()


@needs_mpi
@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("tree", True),
        ("hierarchical", True),
        ("hierarchical:ring", True),
        ("null", False),
        ("hierarchical:null", False),
    ],
)
def test_nobody_rides_where_not_all_is_summed(name: str, exact: bool) -> None:
    """Workers that did not hear of one another's signals would part ways."""
    from mpi4py import MPI

    from fcaffe.parallel.reductions import create_reduction

    reduction = create_reduction(name, MPI.COMM_SELF)
    assert reduction.exact == (not name.endswith("null"))
    reduction.close()
