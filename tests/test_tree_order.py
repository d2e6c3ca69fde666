"""Sums in the order of one binary tree."""

from __future__ import annotations

import numpy as np
import pytest

from fcaffe.tree_order import TreeSum, add_in_tree_order


def leaves(count: int) -> np.ndarray:
    """Rows of such magnitudes that another order gives other bits."""
    random = np.random.default_rng(count)
    return (random.standard_normal((count, 500)) * 10.0 ** random.integers(-4, 4, (count, 500))).astype(np.float32)


def tree(rows: np.ndarray) -> bytes:
    while len(rows) > 1:
        rows = rows[0::2] + rows[1::2]
    return rows[0].tobytes()


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_both_ways_keep_to_the_tree(count: int) -> None:
    rows = leaves(count)
    at_once = np.empty(500, np.float32)
    add_in_tree_order(rows, at_once)
    assert at_once.tobytes() == tree(rows)
    assert count < 4 or tree(rows) != rows.sum(axis=0).tobytes()
    one_by_one = TreeSum(count)
    for _ in range(2):
        leaf = np.empty(500, np.float32)
        for row in rows:
            leaf[:] = row
            one_by_one.add(leaf)
        assert leaf.tobytes() == tree(rows)


@pytest.mark.parametrize("count", [3, 5, 6, 7, 9])
def test_any_number_of_rows(count: int) -> None:
    rows = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
    out = np.empty(4, np.float32)
    add_in_tree_order(rows, out)
    assert np.array_equal(out, rows.sum(axis=0))
