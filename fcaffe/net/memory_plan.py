"""One stretch of memory for many arrays of a net, of which only some are in use at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fcaffe.engines.memory import ALIGNMENT, aligned_zeros
from fcaffe.net.blob import Blob, Storage

if TYPE_CHECKING:
    from fcaffe.net.net import Net, Node


@dataclass
class Use:
    """A storage, and the first and last node of the pass that touch it."""

    storage: Storage
    first: int
    last: int


class MemoryPlan:
    """Places of a net's gradients, and in nets for inference of its activations, where only whole passes are run.

    A gradient is in use from the node that writes it to the one that reads it last, an activation likewise. Left alone
    are what comes from outside or is read there (inputs, outputs, losses), what nobody writes and so stays zero, and
    what Python layers see. Made anew when a shape changes.
    """

    def __init__(self, net: Net) -> None:
        self.net = net
        self._versions: list[int] = []

    def follow(self) -> None:
        """Give all storages their places, if they have not got them for the present shapes."""
        versions = [blob.version for blob in self.net.blobs]
        if versions == self._versions:
            return
        self._versions = versions
        place(list(self._gradients()))
        if self.net.context.inference:
            place(list(self._activations()))

    def _gradients(self) -> Iterator[Use]:
        nodes = self.net.nodes
        unwritten = {id(blob._diff) for node in nodes for blob in _without_gradient(node)}
        unwritten |= {id(blob._diff) for blob in self._outer()}
        for use in _uses(nodes, "_diff"):
            if id(use.storage) not in unwritten:
                yield use

    def _activations(self) -> Iterator[Use]:
        nodes = self.net.nodes
        outer = {id(blob._data) for blob in self._outer()}
        outer |= {id(blob._data) for node in nodes if not node.bottoms for blob in node.tops}
        parameters = {id(blob._data) for node in nodes for blob in node.layer.blobs}
        for use in _uses(nodes, "_data"):
            if id(use.storage) not in outer | parameters:
                yield use

    def _outer(self) -> Iterator[Blob]:
        net = self.net
        for index, weight in enumerate(net.blob_loss_weights):
            if weight or index in net.output_ids or index in net.input_ids:
                yield net.blobs[index]
        for node in net.nodes:
            if node.layer.type == "Python":
                yield from node.blobs


def _without_gradient(node: Node) -> Iterator[Blob]:
    """The bottoms that get no gradient from this node."""
    for blob, needed in zip(node.bottoms, node.bottom_need_backward, strict=True):
        if not (needed and node.needs_backward):
            yield blob


def _uses(nodes: list[Node], which: str) -> list[Use]:
    uses: dict[int, Use] = {}
    for index, node in enumerate(nodes):
        for blob in node.blobs:
            storage = getattr(blob, which)
            use = uses.setdefault(id(storage), Use(storage, index, index))
            use.last = index
    return list(uses.values())


def place(uses: list[Use]) -> None:
    """Put each storage where none lies that is in use at the same time, the largest first and as low as it goes."""
    step = ALIGNMENT // 4
    placed: list[tuple[int, int, Use]] = []  # start, end
    for use in sorted(uses, key=lambda use: -use.storage.size):
        size = -(-use.storage.size // step) * step
        start = 0
        for other_start, other_end, other in sorted(placed, key=lambda item: item[0]):
            if other.first <= use.last and use.first <= other.last:
                if other_start - start >= size:
                    break
                start = max(start, other_end)
        placed.append((start, start + size, use))
    if placed:
        arena = aligned_zeros(placed[0][2].storage.xp, max(end for _, end, _ in placed))
        for start, _, use in placed:
            use.storage.replace(arena[start : start + use.storage.size])
