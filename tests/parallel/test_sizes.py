"""The sizes of buckets, and the reduction for a buffer, as docs/distributed.md says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fcaffe.parallel.sizes import best_reduction, bucket_size

KIB, MIB = 1 << 10, 1 << 20


@given(st.integers(1, 1 << 30), st.integers(2, 64))
def test_a_bucket_is_a_quarter_within_limits(count: int, ranks: int) -> None:
    assert 4 * bucket_size(count, ranks) == min(max(count, 128 * KIB * ranks), 4 * MIB)


@given(st.integers(1, 1 << 32), st.integers(2, 1 << 10))
def test_one_rank_a_host(nbytes: int, ranks: int) -> None:
    expected = "ring" if nbytes // ranks >= 64 * KIB else "doubling" if nbytes <= 16 * KIB else "halving"
    assert best_reduction(ranks, nbytes)[0] == expected
