"""Sums in the order of one binary tree: neighbours first, then neighbouring pairs, and so on.

Floating-point sums depend on their order. This order is the same for any division of the leaves among workers into
blocks of a power of two: each block is a subtree, and the workers' sums continue up the same tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def add_in_tree_order(rows: np.ndarray, out: np.ndarray, spare: np.ndarray | None = None) -> None:
    """out = (rows[0] + rows[1]) + (rows[2] + rows[3]) + ...; other numbers of rows are split at a power of two.

    `spare` is a workspace of at least `spare_rows(len(rows))` rows, allocated if it is None.
    """
    if len(rows) == 1:
        out[...] = rows[0]
    elif len(rows) == 2:
        np.add(rows[0], rows[1], out=out)
    else:
        spare = np.empty((spare_rows(len(rows)), *out.shape), out.dtype) if spare is None else spare
        left = left_leaves(len(rows))
        add_in_tree_order(rows[:left], out, spare)
        right = rows[left]
        if left + 1 < len(rows):
            right = spare[0]
            add_in_tree_order(rows[left:], right, spare[1:])
        np.add(out, right, out=out)


def spare_rows(count: int) -> int:
    """Return the rows of workspace that `add_in_tree_order` needs for `count` rows."""
    return max((count - 1).bit_length() - 1, 0)


def left_leaves(count: int) -> int:
    """Return how many of `count` leaves (at least two) are left of the root."""
    return 1 << ((count - 1).bit_length() - 1)


class TreeSum:
    """Sums `leaves` arrays (a power of two) one after the other, with log2(leaves) partial sums."""

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self._count = 0
        self._partials: list[Array] = []  # of 1, 2, 4, ... leaves, for each bit of `_count`

    def add(self, leaf: Array) -> None:
        """Add the next leaf; it is overwritten by the largest subtree that it completes, at last by the sum of all."""
        level = 0
        while self._count >> level & 1:
            leaf += self._partials[level]
            level += 1
        self._count = (self._count + 1) % self.leaves
        if self._count and level == len(self._partials):
            self._partials.append(leaf.copy())
        elif self._count:
            self._partials[level][...] = leaf
