"""Sums in the order of one binary tree."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fcaffe.tree_order import Node, Sums, Tree, nodes_of_workers, sum_in_tree_order

LEAVES = [1, 2, 3, 4, 5, 7, 8, 11, 12, 16, 100, 4096]


def leaves(count: int) -> np.ndarray:
    """Rows of such magnitudes that another order gives other bits."""
    random = np.random.default_rng(count)
    return (random.standard_normal((count, 50)) * 10.0 ** random.integers(-4, 4, (count, 50))).astype(np.float32)


def pairwise(rows: np.ndarray) -> bytes:
    """Neighbours are added, and neighbouring sums, and so on; one that is left over waits for the next round."""
    while len(rows) > 1:
        rows = np.array([rows[i] + rows[i + 1] if i + 1 < len(rows) else rows[i] for i in range(0, len(rows), 2)])
    return rows[0].tobytes()


@pytest.mark.parametrize("count", LEAVES)
def test_whoever_adds_up_comes_to_the_same_bits(count: int) -> None:
    rows, tree = leaves(count), Tree(count)
    assert count < 4 or pairwise(rows) != rows.sum(axis=0).tobytes()
    assert sum_in_tree_order(rows).tobytes() == pairwise(rows)
    random = np.random.default_rng(count)
    for workers in {1, 2, 3, (count + 1) // 2, count}:
        if workers > count:
            continue
        ends = [0, *np.sort(random.choice(np.arange(1, count), workers - 1, replace=False)), count]
        parts = []
        for start, stop in itertools.pairwise(ends):
            own: Sums = {}
            for leaf in range(start, stop):
                tree.join(own, {(leaf, leaf + 1): rows[leaf].copy()})
            assert sorted(own) == tree.cover(start, stop) and len(own) <= max(2 * np.log2(count), 1)
            parts.append(own)
        joined: Sums = {}
        for index in random.permutation(workers):
            tree.join(joined, parts[index])
        assert list(joined) == [tree.root] and joined[tree.root].tobytes() == pairwise(rows)


@pytest.mark.parametrize("count", LEAVES)
def test_sums_of_a_worker(count: int) -> None:
    """One where the shards are 2^k times the workers, else 2 log2 of the shards at most."""
    assert nodes_of_workers(6, 2)[1] == [[(0, 2), (2, 3)], [(3, 4), (4, 6)]], "as docs/distributed.md draws it"
    for workers in {1, 2, 3, 4, 7, 8, count} & set(range(1, count + 1)):
        _, nodes = nodes_of_workers(count, workers)
        sums = max(map(len, nodes))
        assert len(nodes) == workers and sums <= max(1, 2 * np.log2(count))
        assert sums == 1 or count % workers or (count // workers).bit_count() > 1


def test_nodes_that_are_left() -> None:
    nodes: list[Node] = [(3, 4), (4, 5), (2, 3), (0, 1)]
    assert Tree(5).joined(nodes) == [(0, 1), (2, 4), (4, 5)]
    assert Tree(5).joined([*nodes, (1, 2)]) == [(0, 5)]
