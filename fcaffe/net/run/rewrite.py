"""Rewrites the nodes of a graph into those of a program: fuses layers, and keeps what in-place layers overwrite.

The graph says what the prototxt says. If nobody reads the blobs between some layers, such as Convolution and ReLU, one
fused layer can do the same work in fewer passes over memory:

    graph     conv1: data -> conv1    relu1: conv1 -> conv1    pool1: conv1 -> pool1
    program   conv1+relu1: data -> conv1                        pool1: conv1 -> pool1

A rule is a function of the nodes and of `Want`, what the pass must leave behind. The rules run in the order in which
they were registered (see `fcaffe.layers.fused`); without any of them results differ only by rounding. A rule finds the
neighbours of a node by `Touching`, in time proportional to the number of nodes.

In Caffe, backward reads whatever in-place layers have left in a blob's memory, except that BatchNorm and some other
layers keep a copy of their bottom, which becomes a blob of its own in a program (`without_copies`).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fcaffe.net.blob import Blob, Storage
from fcaffe.net.layer import Layer, Traits, is_layer
from fcaffe.net.node import Node
from fcaffe.proto import caffe_pb2 as pb


@dataclass(frozen=True)
class Want:
    """What a whole pass must compute."""

    visible: frozenset[Blob] | None  # whose values are read after the pass; None: of all, with their gradients
    gradients: bool  # a backward pass follows

    def hides(self, storage: Storage) -> bool:
        """Whether the values of this storage need not be there after the pass."""
        return self.visible is not None and storage not in self._storages

    @functools.cached_property
    def _storages(self) -> set[Storage]:
        return {blob.data_storage for blob in self.visible or ()}


Rule = Callable[[list[Node], Want], list[Node]]

LONGEST = 8  # nodes of a chain that becomes one


class Touching:
    """Finds the nodes of a list that read or write a memory, by their positions in the list."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.positions: dict[Storage, list[int]] = defaultdict(list)
        for position, node in enumerate(nodes):
            for storage in {blob.data_storage for blob in node.blobs}:
                self.positions[storage].append(position)

    def hides(self, fused: Node, replaced: Sequence[int], want: Want) -> bool:
        """Whether all other nodes read the same values if `fused` replaces the nodes at these positions: it does not
        write the tops between them."""
        nodes, own = self.nodes, set(replaced)
        written = {blob.data_storage for blob in fused.tops}
        for storage in {blob.data_storage for p in replaced for blob in nodes[p].tops} - written:
            positions = self.positions[storage]
            first = next(p for p in positions if p in own)
            outside = [p for p in positions if p not in own]
            if not want.hides(storage) or any(p > first for p in outside):
                return False
            if want.gradients and any(saves(nodes[p], storage) for p in outside):
                return False
        return True

    def is_overwritten(self, fused: Node, replaced: Sequence[int]) -> bool:
        """Whether later nodes overwrite memory which backward of only one of `fused` and the replaced nodes reads."""
        nodes = self.nodes
        shared = {blob.data_storage for p in replaced for blob in nodes[p].blobs}
        ours = shared & {blob.data_storage for blob in fused.saved()}
        theirs = shared & {blob.data_storage for p in replaced for blob in nodes[p].saved()}
        if ours == theirs:
            return False
        read = ours | theirs
        return any(p > max(replaced) and overwrites(nodes[p], s) for s in read for p in self.positions[s])


def saves(node: Node, storage: Storage) -> bool:
    """Whether backward of this node reads this memory."""
    return any(blob.data_storage is storage for blob in node.saved())


def overwrites(node: Node, storage: Storage) -> bool:
    """Whether forward of this node writes this memory."""
    return not node.layer.traits.aliases and any(blob.data_storage is storage for blob in node.tops)


class FusedLayer(Layer):
    """Base of layers that do the work of a chain of layers. Each layer of it alone reads the top of the one before it.

    Its bottoms are those of the first layer and what the others read from elsewhere; its tops are those of the last.
    The blobs in between are not materialised. It uses the parameters of the layers that it stands for. Its backward may
    write one more gradient, `inner`, that in front of its last layer, in the memory of the top's gradient.
    """

    traits = Traits(reshapes_by_shape=True)
    begins_with: type[Layer]  # the class of the chain's first layer; see `is_layer`

    def __init__(self, nodes: Sequence[Node]) -> None:
        first = nodes[0].layer
        name = "+".join(node.name for node in nodes)
        super().__init__(pb.LayerParameter(name=name, type=type(self).__name__, phase=first.phase), first.context)
        self.nodes = tuple(nodes)
        self.loss_weights = nodes[-1].layer.loss_weights
        self.inner = Blob(first.xp, (), channels_last=True, dtype=nodes[-1].tops[0].dtype)

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        """The number of nodes, from the first of the chain on, that this layer can replace; 0 if none.

        Each node of the chain reads the only top of the one before it. Backward runs for both or for neither of them.
        """
        raise NotImplementedError

    @property
    def layers(self) -> list[Layer]:
        return [layer for node in self.nodes for layer in node.layer.layers]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for node in self.nodes:
            node.reshape()
        for blob, own in zip(top, self.nodes[-1].tops, strict=True):
            blob.reshape(*own.shape)

    def macs(self, bottom: list[Blob], top: list[Blob]) -> int:
        return sum(node.layer.macs(node.bottoms, node.tops) for node in self.nodes)


rules: list[Rule] = []


def register_rule(rule: Rule) -> None:
    """Add a rule behind the registered ones."""
    rules.append(rule)


def register_fusion(kind: type[FusedLayer]) -> None:
    """Add the rule that replaces each chain which this fused layer matches."""
    register_rule(functools.partial(_fused, kind=kind))


def rewrite(nodes: Sequence[Node], want: Want) -> list[Node]:
    """The nodes of a program whose passes compute what is wanted. The nodes of the graph do not change."""
    rewritten = without_copies(nodes) if want.gradients else list(nodes)
    for rule in rules:
        rewritten = rule(rewritten, want)
    return [replace(node, index=index, versions=[]) for index, node in enumerate(rewritten)]


def without_copies(nodes: Sequence[Node]) -> list[Node]:
    """Let the nodes before an in-place node that saves its bottom write directly into `before`, unless backward of one
    of them reads the overwritten memory, or other blobs share it."""
    result = list(nodes)
    touched: dict[Storage, list[int]] = defaultdict(list)  # the nodes that work on the present values of a memory
    for index, node in enumerate(nodes):
        if node.before is not None and node.needs_backward and node.before in node.saved():
            old, new = node.bottoms[0], node.before
            storage = old.data_storage
            earlier = [result[position] for position in touched[storage]]
            if not any(saves(other, storage) or _shares(other, old) for other in earlier):
                new.reshape(*old.shape)
                new.share_diff(old)
                for position in touched.pop(storage):
                    result[position] = _with(result[position], old, new)
                result[index] = replace(node, bottoms=[new, *node.bottoms[1:]])
        for storage in {blob.data_storage for blob in result[index].blobs}:
            touched[storage].append(index)
    return result


def _shares(node: Node, blob: Blob) -> bool:
    return any(other.data_storage is blob.data_storage and other is not blob for other in node.blobs)


def _with(node: Node, old: Blob, new: Blob) -> Node:
    bottoms = [new if blob is old else blob for blob in node.bottoms]
    tops = [new if blob is old else blob for blob in node.tops]
    return replace(node, bottoms=bottoms, tops=tops)


def _fused(nodes: list[Node], want: Want, kind: type[FusedLayer]) -> list[Node]:
    touching, result, index = Touching(nodes), list[Node](), 0
    while index < len(nodes):
        node, length = _longest(touching, index, want, kind)
        result.append(node)
        index += length
    return result


def _longest(touching: Touching, index: int, want: Want, kind: type[FusedLayer]) -> tuple[Node, int]:
    """The fused node for as many nodes from `index` on as possible, and how many; the node itself if there is none."""
    node = touching.nodes[index]
    chain = _chain(touching.nodes, index, want) if is_layer(node.layer, kind.begins_with) else []
    while chain and (length := kind.match(chain, want)):
        fused, replaced = _node_for(kind, chain[:length]), range(index, index + length)
        harms = want.gradients and touching.is_overwritten(fused, replaced)
        if touching.hides(fused, replaced, want) and not harms:
            return fused, length
        chain = chain[: length - 1]
    return node, 1


def _chain(nodes: Sequence[Node], index: int, want: Want) -> list[Node]:
    """The node at `index` and those right behind it that are linked to it as FusedLayer.match says."""
    chain = [nodes[index]]
    for node in nodes[index + 1 : index + LONGEST]:
        before = chain[-1]
        if len(before.tops) != 1 or any(before.layer.loss_weights) or node.bottoms.count(before.tops[0]) != 1:
            break
        down = node.bottom_need_backward[node.bottoms.index(before.tops[0])]
        if want.gradients and not (before.needs_backward == node.needs_backward == down):
            break
        chain.append(node)
    return chain


def _node_for(kind: type[FusedLayer], chain: Sequence[Node]) -> Node:
    between = {blob for node in chain for blob in node.tops}
    outer = [
        (blob, down)
        for number, node in enumerate(chain)
        for blob, down in zip(node.bottoms, node.bottom_need_backward, strict=True)
        if number == 0 or blob not in between
    ]
    bottoms, downs = zip(*outer, strict=True)
    return replace(
        chain[0],
        layer=kind(chain),
        bottoms=list(bottoms),
        tops=chain[-1].tops,
        bottom_need_backward=list(downs),
        needs_backward=chain[-1].needs_backward,
        before=None,
    )
