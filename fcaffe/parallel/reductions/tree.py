from __future__ import annotations

from mpi4py import MPI

from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.ordered import Ordered, arrays_of
from fcaffe.parallel.reductions.reduction import register
from fcaffe.parallel.reductions.wire import wait
from fcaffe.parallel.sizes import segment_length, segments_ahead
from fcaffe.tree_order import Sums, part_of_sums


@register("tree")
class BinomialTree(Ordered):
    """FireCaffe's: sums go up a binomial tree to rank 0, the total comes down the same tree.

    2 ceil(log2 p) messages of the whole buffer on the longest path. A long buffer goes in segments, so that one is
    added while the next is on its way, and the first come down while the last go up.
    """

    def add_sums(self, sums: Sums, total: Array) -> None:
        parent, children = tree_neighbours(self.rank, self.ranks)
        length = segment_length(total.size)
        segments = [slice(start, min(start + length, total.size)) for start in range(0, total.size, length)]
        subtrees = [range(child, min(2 * child - self.rank, self.ranks)) for child in children]
        buffers = [[self.receive_buffers(subtree, length) for subtree in subtrees] for _ in range(2)]
        going_up: list[list[MPI.Request]] = []

        def receive_from_children(index: int) -> list[tuple[Sums, list[MPI.Request]]]:
            if index >= len(segments):
                return []
            if index >= 2 and going_up:
                wait(going_up[index - 2])  # which may have been sent from the memory that is used again
            whole = slice(0, segments[index].stop - segments[index].start)
            parts = [part_of_sums(buffer, whole) for buffer in buffers[index % 2]]
            return [
                (one, [self.wire.start_receive(array, child) for array in arrays_of(one)])
                for one, child in zip(parts, children, strict=True)
            ]

        lag = 0 if parent is None else segments_ahead(self.ranks)
        going_down: list[MPI.Request] = []
        coming = receive_from_children(0)
        for step in range(len(segments) + lag):
            if step < len(segments):
                arriving, coming = coming, receive_from_children(step + 1)
                segment = part_of_sums(sums, segments[step])
                for received, requests in arriving:
                    wait(requests)
                    self.join(segment, received)
                if parent is None:
                    self.write_total(segment, total[segments[step]])
                else:
                    going_up.append([self.wire.start_send(array, parent) for array in arrays_of(segment)])
            if step >= lag:
                finished = total[segments[step - lag]]
                if parent is not None:
                    wait(going_up[step - lag])
                    self.wire.receive(finished, parent)
                going_down += [self.wire.start_send(finished, child) for child in reversed(children)]
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
