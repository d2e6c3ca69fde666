"""Rewrites the nodes of a graph into those of a program: fuses layers, and gives some in-place layers a buffer.

The graph says what the prototxt says. If nobody reads the blobs between some layers, such as Convolution and ReLU, one
fused layer can do the same work in fewer passes over memory:

    graph     conv1: data -> conv1    relu1: conv1 -> conv1    pool1: conv1 -> pool1
    program   conv1: data -> conv1    relu1+pool1: conv1 -> pool1

`Want` says what a pass must leave behind, and so what may be fused. A rule is a function of the nodes and the want. The
rules run one after the other, in the order in which they were registered (see `fcaffe.layers.fused`); each of them may
be left out, which changes results only by rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fcaffe.net.blob import Blob
from fcaffe.net.layer import Layer
from fcaffe.net.node import Node
from fcaffe.net.storage import Storage
from fcaffe.net.traits import Traits
from fcaffe.proto import caffe_pb2 as pb


@dataclass(frozen=True)
class Want:
    """What a whole pass must leave behind.

    `visible`: the blobs whose values are read after the pass; None stands for all blobs of the graph, with their
    gradients. `gradients`: a backward pass follows.
    """

    visible: frozenset[Blob] | None
    gradients: bool

    def hides(self, blob: Blob) -> bool:
        """Whether the values of this blob need not be there after the pass."""
        return self.visible is not None and blob.data_storage not in self._storages

    @functools.cached_property
    def _storages(self) -> set[Storage]:
        return {blob.data_storage for blob in self.visible or ()}


Rule = Callable[[list[Node], Want], list[Node]]


class FusedLayer(Layer):
    """Base of layers that do the work of a chain of layers. Each layer of it alone reads the top of the one before it.

    Its bottoms are those of the first layer and what the others read from elsewhere; its tops are those of the last.
    The blobs in between are not materialised. It uses the parameters of the layers that it stands for, adds to their
    gradients, and has none of its own.
    """

    traits = Traits(reshapes_by_shape=True, repeatable=True)
    keeps_blobs = False  # if all layers but the first run in place, all blobs end with the values of separate layers

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        first = nodes[0].layer
        name = "+".join(node.name for node in nodes)
        super().__init__(pb.LayerParameter(name=name, type=type(self).__name__, phase=first.phase), first.context)
        self.nodes = tuple(nodes)
        self.want = want
        self.loss_weights = nodes[-1].layer.loss_weights
        self.traits = replace(self.traits, by_sample=all(node.layer.traits.by_sample for node in nodes))

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        """How many nodes, from the first of the chain on, this layer can stand for; 0 if it cannot.

        Each node of the chain reads the only top of the one before it, which no other node reads. Backward runs for
        both or for neither of them.
        """
        raise NotImplementedError

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for node in self.nodes:
            node.reshape()

    def macs(self, bottom: list[Blob], top: list[Blob]) -> int:
        """Multiply-adds of one forward pass."""
        return sum(node.layer.macs(node.bottoms, node.tops) for node in self.nodes if hasattr(node.layer, "macs"))


rules: list[Rule] = []


def register_rule(rule: Rule) -> None:
    """Add a rule behind the registered ones."""
    rules.append(rule)


def register_fusion(kind: type[FusedLayer]) -> None:
    """Add the rule that replaces each chain which this fused layer matches."""
    register_rule(functools.partial(_fused, kind=kind))


def rewrite(nodes: Sequence[Node], want: Want) -> list[Node]:
    """The nodes of a program whose passes leave behind what is wanted. The nodes of the graph stay as they are."""
    rewritten = renumbered(with_own_bottoms(nodes) if want.gradients else nodes)
    for rule in rules:
        rewritten = renumbered(rule(rewritten, want))
    return rewritten


def renumbered(nodes: Sequence[Node]) -> list[Node]:
    """The same nodes, each with its position in this list as its index."""
    return [replace(node, index=index, versions=[]) for index, node in enumerate(nodes)]


def with_own_bottoms(nodes: Sequence[Node]) -> list[Node]:
    """Lets the layers before an in-place layer that saves its bottom write directly into the saved copy.

        graph      conv: data -> x     norm: x -> x, which copies x for backward     scale: x -> x, likewise
        program    conv: data -> x'    norm: x' -> x"                                scale: x" -> x

    x' and x" are the layers' `bottom_copy`, so backward of the graph's own nodes finds them too. They share the
    gradient of x.

    A layer keeps its copy where backward of an earlier layer, such as a ReLU, reads x: in Caffe it sees the overwritten
    values, and so it does here. So it does where x shares its data with another blob, as the tops of a Split do.
    """
    made = renumbered(nodes)
    for index in range(len(made)):
        node = made[index]
        new = node.layer.bottom_copy
        if new is None or not node.in_place or not node.needs_backward:
            continue
        old = node.bottoms[0]
        touching = [earlier for earlier in made[:index] if old in earlier.blobs]
        shares = any(
            blob is not old and blob.data_storage is old.data_storage for other in made[:index] for blob in other.blobs
        )
        if shares or any(old in other.layer.saved(other.bottoms, other.tops) for other in touching):
            continue
        new.reshape(*old.shape)
        new.share_diff(old)
        made[:index] = [_with(earlier, old, new) for earlier in made[:index]]
        made[index] = replace(node, bottoms=[new])
    return made


def _with(node: Node, old: Blob, new: Blob) -> Node:
    bottoms = [new if blob is old else blob for blob in node.bottoms]
    tops = [new if blob is old else blob for blob in node.tops]
    return replace(node, bottoms=bottoms, tops=tops)


def _fused(nodes: list[Node], want: Want, kind: type[FusedLayer]) -> list[Node]:
    made: list[Node] = []
    index = 0
    while index < len(nodes):
        chain = _chain(nodes, index, want)
        count = kind.match(chain, want)
        while count and not _is_hidden(chain[:count], want, kind):
            count = kind.match(chain[: count - 1], want) if count > 2 else 0
        node = _node_for(kind, chain[:count], want) if count else nodes[index]
        if count and want.gradients:
            others = [*nodes[:index], node, chain[count - 1]]
            if changes_what_backward_sees(node, chain[:count], others, nodes[index + count :]):
                node, count = nodes[index], 0
        made.append(node)
        index += max(1, count)
    return made


def _is_hidden(chain: Sequence[Node], want: Want, kind: type[FusedLayer]) -> bool:
    """Whether nobody can see that these nodes run as one layer."""
    last = chain[-1].tops[0]
    between = [blob for node in chain[:-1] for blob in node.tops]
    if want.visible is None and want.gradients:
        return kind.keeps_blobs and all(node.in_place for node in chain[1:])
    return all(want.hides(blob) or blob.data_storage is last.data_storage for blob in between)


def changes_what_backward_sees(
    fused: Node, replaced: Sequence[Node], readers: Sequence[Node], later: Sequence[Node]
) -> bool:
    """Whether some backward would read other values than in Caffe, where an in-place layer may overwrite what backward
    of an earlier one reads. A ReLU, for instance, then sees the signs of the overwritten values.

    That is so if a reader saves a blob that the replaced nodes overwrite and the fused one does not, or a top of the
    fused node that a later node overwrites. A Dropout leaves the signs where it lets a gradient through.
    """
    read = {blob for node in readers for blob in node.layer.saved(node.bottoms, node.tops)}
    not_written = {blob for node in replaced if node.in_place for blob in node.tops} - set(fused.tops)
    overwritten = {blob for node in later if not node.layer.traits.keeps_signs for blob in node.tops} & set(fused.tops)
    return bool(read & not_written or read & overwritten)


def _chain(nodes: list[Node], index: int, want: Want) -> list[Node]:
    """The node at `index` and those right behind it that are linked to it as FusedLayer.match says."""
    chain = [nodes[index]]
    for node in nodes[index + 1 :]:
        before = chain[-1]
        if len(before.tops) != 1 or any(before.layer.loss_weights) or node.bottoms.count(before.tops[0]) != 1:
            break
        down = node.bottom_need_backward[node.bottoms.index(before.tops[0])]
        if want.gradients and not (before.needs_backward == node.needs_backward == down):
            break
        chain.append(node)
    return chain


def _node_for(kind: type[FusedLayer], chain: Sequence[Node], want: Want) -> Node:
    made = {blob for node in chain for blob in node.tops}
    outer = [
        (blob, down)
        for number, node in enumerate(chain)
        for blob, down in zip(node.bottoms, node.bottom_need_backward, strict=True)
        if number == 0 or blob not in made
    ]
    bottoms, downs = zip(*outer, strict=True)
    node = node_in_place_of(kind(chain, want), chain, chain[0], chain[-1])
    return replace(node, bottoms=list(bottoms), bottom_need_backward=list(downs))


def node_in_place_of(layer: FusedLayer, nodes: Sequence[Node], first: Node, last: Node) -> Node:
    """A node for a layer that does the work of these nodes, with the bottoms of the first and the tops of the last."""
    return replace(
        first,
        layer=layer,
        name=layer.name,
        tops=last.tops,
        needs_backward=last.needs_backward,
        has_loss=last.has_loss,
        members=tuple(member for node in nodes for member in (node.members or (node,))),
        versions=[],
    )
