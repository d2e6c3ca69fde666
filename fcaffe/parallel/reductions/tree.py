from __future__ import annotations

import numpy as np
from mpi4py import MPI

from fcaffe.parallel.reductions.reduction import Reduction, register
from fcaffe.parallel.reductions.wire import wait
from fcaffe.parallel.sizes import segment_length, segments_ahead


@register("tree")
class Tree(Reduction):
    """FireCaffe's: sums go up a binomial tree to rank 0, the total comes down the same tree.

    2 ceil(log2 p) messages of the whole buffer on the longest path. A long buffer goes in segments, so that one is
    added while the next is on its way, and the first come down while the last go up.
    """

    knows_tree = True

    def add_up(self, buffer: np.ndarray) -> None:
        parent, children = tree_neighbours(self.rank, self.ranks)
        length = segment_length(buffer.size)
        segments = [buffer[start : start + length] for start in range(0, buffer.size, length)]
        given = self.scratch(2 * len(children) * length).reshape(2, len(children), length)

        def receive_from_children(index: int) -> list[MPI.Request]:
            if index >= len(segments):
                return []
            partials = given[index % 2, :, : segments[index].size]
            return [self.wire.start_receive(partial, child) for partial, child in zip(partials, children, strict=True)]

        lag = 0 if parent is None else segments_ahead(self.ranks)
        going_up: list[MPI.Request] = []
        going_down: list[MPI.Request] = []
        coming = receive_from_children(0)
        for step in range(len(segments) + lag):
            if step < len(segments):
                arriving, coming = coming, receive_from_children(step + 1)
                segment = segments[step]
                for request, partial in zip(arriving, given[step % 2], strict=True):
                    wait([request])
                    np.add(segment, partial[: segment.size], out=segment)
                if parent is not None:
                    going_up.append(self.wire.start_send(segment, parent))
            if step >= lag:
                segment = segments[step - lag]
                if parent is not None:
                    wait([going_up[step - lag]])
                    self.wire.receive(segment, parent)
                going_down += [self.wire.start_send(segment, child) for child in reversed(children)]
        wait(going_down)


def tree_neighbours(rank: int, ranks: int) -> tuple[int | None, list[int]]:
    """(parent, children) in the binomial tree with root 0; the children with the smallest subtrees come first."""
    children = []
    distance = 1
    while distance < ranks and not rank & distance:
        if rank + distance < ranks:
            children.append(rank + distance)
        distance *= 2
    return (rank - distance if rank else None), children
