"""Training passes of nodes that an engine has recorded, so that Python need not work out each time what to call.

Of a step of LeNet with 64 images a fifth is Python's: which blob lies where, what was made for its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fcaffe.engines.engine import Engine
from fcaffe.net.blob import Blob
from fcaffe.net.layer import Layer
from fcaffe.net.node import Node
from fcaffe.net.storage import Array, Storage

SETTLED = 3  # the pass with the same shapes and memory in which nodes are recorded
LARGE = 1 << 24  # bytes of a node's arrays from which on Python's share is small, while copies of them would not be

Play = Callable[[], None]


class RecordedTraining:
    """The whole passes of these nodes of a program, of which those are recorded whose layers are `by_operators`.

    A recording is of certain memory: it counts as long as the blobs have the versions, and the storages the buffers,
    that they had then. Layers that bring data in come before, and run as they are.
    """

    def __init__(self, nodes: Sequence[Node], engine: Engine) -> None:
        self._engine = engine
        candidates = _candidates(nodes) if engine.records else []
        indices = {node.index for node in candidates}
        self._is_candidate = [node.index in indices for node in nodes]
        self._first = candidates[0].index if candidates else None
        self._blobs = [blob for node in nodes for blob in (*node.blobs, *_parameters(node))]
        self._candidates = candidates
        self._memory: list[tuple[Storage, Array]] = []
        self._forget()

    def forward(self, node: Node) -> bool:
        """Run the node's forward pass if it is, or is to be, recorded; returns whether it has run. In a whole pass this
        is asked for all nodes in their order, or for a fused one in the place of those from its index on."""
        index = node.index
        if index == self._first:
            self._begin()
        if self._passes < SETTLED or not self._is_candidate[index]:
            return False
        if index not in self._forward:
            if not _suits(node):
                return False
            self._forward[index] = self._recorded(node, node.forward)
            return True
        play = self._forward[index]
        if play is None:
            return False
        play()
        return True

    def backward(self, node: Node) -> bool:
        """The same for the backward pass behind such a forward pass. What is done depends on whether gradients of
        parameters are overwritten or added to."""
        index = node.index
        if self._passes < SETTLED or not self._is_candidate[index]:
            return False
        gradients = self._gradients[index]
        key = (index, *[storage.is_clear for storage in gradients])
        if key not in self._backward:
            play = self._recorded(node, node.backward)
            written = not any(storage.is_clear for storage in gradients)
            self._backward[key] = play if written else None
            return True
        play = self._backward[key]
        if play is None:
            return False
        play()
        for storage in gradients:
            storage.is_clear = False
        return True

    def holds(self) -> bool:
        """Whether all is where it was at the beginning of the forward pass; what was recorded is forgotten if not."""
        if self._passes >= SETTLED and not self._is_as_it_was():
            self._forget()
        return self._passes >= SETTLED

    def _begin(self) -> None:
        """A forward pass has come to the first node that may be recorded."""
        if not self._is_as_it_was():
            self._forget()
        self._passes += 1
        if self._passes == SETTLED:
            found = {id(storage): storage for some in self._storages.values() for storage in some}
            self._memory = [(storage, storage.buffer) for storage in found.values()]

    def _forget(self) -> None:
        self._passes = 0  # with these versions and buffers
        self._versions = [blob.version for blob in self._blobs]
        self._storages = {node.index: _storages(node) for node in self._candidates}
        self._gradients = {node.index: [blob._diff for blob in _parameters(node)] for node in self._candidates}
        self._memory = []
        self._forward: dict[int, Play | None] = {}
        self._backward: dict[tuple[Any, ...], Play | None] = {}

    def _is_as_it_was(self) -> bool:
        same = all([storage.buffer is buffer for storage, buffer in self._memory])
        return same and [blob.version for blob in self._blobs] == self._versions

    def _recorded(self, node: Node, work: Play) -> Play | None:
        """What does the work again, if there is such; it is done now as well."""
        arrays = [storage.buffer for storage in self._storages[node.index] if storage.buffer is not None]
        if sum(array.nbytes for array in arrays) >= LARGE:
            work()
            return None
        return self._engine.taken_down(work, arrays)


def _candidates(nodes: Sequence[Node]) -> list[Node]:
    """Those that may be recorded: behind all sources, and with blobs whose shapes no node changes amid a pass."""
    behind = max((node.index for node in nodes if not node.bottoms), default=-1)
    found: list[Node] = []
    unsteady: set[Blob] = set()
    for node in nodes:
        if node.bottoms and not (node.is_steady and unsteady.isdisjoint(node.bottoms)):
            unsteady.update(node.tops)
        elif node.index > behind and _suits(node):
            found.append(node)
    return found


def _suits(node: Node) -> bool:
    return not node.has_loss and all(_is_by_operators(layer) for layer in (node.layer, *node.layers))


def _is_by_operators(layer: Layer) -> bool:
    """Whether it says so in the class that its passes are from, or in one derived from that: another pass may compute
    by other means."""
    of_traits, of_forward, of_backward = (
        next(index for index, kind in enumerate(type(layer).__mro__) if name in vars(kind))
        for name in ("traits", "forward", "backward")
    )
    return layer.traits.by_operators and of_traits <= min(of_forward, of_backward)


def _parameters(node: Node) -> list[Blob]:
    return [blob for layer in node.layers for blob in layer.blobs]


def _storages(node: Node) -> list[Storage]:
    """All that its passes may touch."""
    blobs = [*node.blobs, *node.layer.saved(node.bottoms, node.tops)]
    blobs += _parameters(node)
    found = [storage for blob in blobs for storage in (blob._data, blob._diff)]
    return list({id(storage): storage for storage in found}.values())
