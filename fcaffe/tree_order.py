"""Sums in the order of one binary tree, whichever rank adds up which part of it.

Floating-point sums depend on their order. A `Tree` fixes it for numbered leaves, such as the shards of a batch:

    5 leaves:  ((0 + 1) + (2 + 3)) + 4

A worker that has some of the leaves adds up what it can, the nodes whose leaves it all has. Workers then join their
sums, in any sequence and grouping, and come to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from fcaffe.engines.memory import Array, address
from fcaffe.share import split_batch

Node = tuple[int, int]  # the leaves from the first number up to, but without, the second
Sums = dict[Node, Array]  # of disjoint nodes


class Tree:
    """The binary tree over leaves 0 to `leaves - 1`. A node of n leaves splits at the largest power of two below n."""

    def __init__(self, leaves: int) -> None:
        self.root: Node = (0, leaves)

    def cover(self, start: int, stop: int) -> list[Node]:
        """The fewest nodes that cover the leaves from `start` to `stop - 1`: 2 log2(leaves) at most."""
        return self._cover(start, stop, self.root)

    def _cover(self, start: int, stop: int, node: Node) -> list[Node]:
        first, end = node
        if stop <= first or end <= start:
            return []
        if start <= first and end <= stop:
            return [node]
        middle = first + left_leaves(end - first)
        return self._cover(start, stop, (first, middle)) + self._cover(start, stop, (middle, end))

    def sibling(self, node: Node) -> Node:
        """The node that has the same parent. Not for the root."""
        first, end = self.root
        while True:
            middle = first + left_leaves(end - first)
            if node == (first, middle):
                return middle, end
            if node == (middle, end):
                return first, middle
            first, end = (first, middle) if node[1] <= middle else (middle, end)

    def join(
        self, sums: Sums, others: Mapping[Node, Array], into_others: bool = False, add: Callable[..., Array] = np.add
    ) -> None:
        """Add the sums of other nodes to `sums`, and replace siblings by their parent as long as there are any.

        Siblings are added in place, in the arrays of `sums`, or with `into_others` in those of `others`. Afterwards
        `sums` may have arrays of both.
        """
        for node, array in others.items():
            while node != self.root and (other := self.sibling(node)) in sums:
                beside = sums.pop(other)
                left, right = (beside, array) if other < node else (array, beside)
                array = add(left, right, out=array if into_others else beside)
                node = min(node[0], other[0]), max(node[1], other[1])
            sums[node] = array

    def joined(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes that are left, in order, when all of these are joined."""
        left: Sums = {}
        for node in nodes:
            self.join(left, {node: None}, add=lambda *arrays, out: None)
        return sorted(left)


def part_of_sums(sums: Sums, part: slice) -> Sums:
    """The same slice of each array."""
    return {node: array[part] for node, array in sums.items()}


def copy_into(target: Array, array: Array) -> None:
    """target[...] = array, unless they are the same memory."""
    if _address(array) != _address(target):
        target[...] = array


def _address(array: Array) -> int:
    return int(array.data.ptr) if hasattr(array, "get") else address(array)  # as arrays of CuPy have


def sum_in_tree_order(rows: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """(rows[0] + rows[1]) + (rows[2] + rows[3]) + ..., in the order of the Tree over the rows; one row as it is."""
    if len(rows) == 1:
        return rows[0]
    left = left_leaves(len(rows))
    return sum_in_tree_order(rows[:left]) + sum_in_tree_order(rows[left:])


def left_leaves(count: int) -> int:
    """Return how many of `count` leaves (at least two) are left of the root: the largest power of two below."""
    return 1 << ((count - 1).bit_length() - 1)


def nodes_of_workers(size: int, workers: int) -> tuple[Tree, list[list[Node]]]:
    """The tree in which so many shards are added up, and the nodes that cover the shards of each worker."""
    tree = Tree(size)
    shares = [split_batch(size, worker, workers) for worker in range(workers)]
    return tree, [tree.cover(share.first, share.first + share.count) for share in shares]
