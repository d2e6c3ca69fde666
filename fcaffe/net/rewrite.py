"""Rewriting the nodes of a graph for whole passes: layers are fused, and some in place get a bottom of their own.

The graph says what the prototxt says. Where only whole passes are run, nobody looks at the blobs between some layers,
so a run of layers such as Convolution, ReLU may be replaced by one fused layer that does the same work in fewer passes
over memory:

    graph     conv1: data -> conv1    relu1: conv1 -> conv1    pool1: conv1 -> pool1
    program   conv1: data -> conv1    relu1+pool1: conv1 -> pool1

A fused layer is an ordinary layer with four methods. It says by `match` which layers it replaces; the rules are tried
one after the other, in the order in which they were registered, each over the whole list of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from fcaffe.net.blob import Blob
from fcaffe.net.layer import Layer
from fcaffe.net.node import Node
from fcaffe.net.storage import Storage
from fcaffe.net.traits import Traits
from fcaffe.proto import caffe_pb2 as pb


class FusedLayer(Layer):
    """Base of layers that do the work of several, each of which alone reads what the one before it makes.

    Its bottoms are those of the first layer and what the others read from elsewhere; its tops are those of the last.
    What lies between is never written. It borrows the parameters of the layers that it stands for, and adds to their
    gradients; it has none of its own.
    """

    traits = Traits(reshapes_by_shape=True, repeatable=True)
    forward_is_unseen = False  # where all but the first layer work in place, forward leaves every blob as they would
    exact = False  # what forward writes has the bits that the layers one by one would write
    only_exact = False  # it is there for passes whose bits count, since another one is faster

    def __init__(self, nodes: Sequence[Node]) -> None:
        first = nodes[0].layer
        name = "+".join(node.name for node in nodes)
        super().__init__(pb.LayerParameter(name=name, type=type(self).__name__, phase=first.phase), first.context)
        self.nodes = tuple(nodes)
        self.loss_weights = nodes[-1].layer.loss_weights

    @classmethod
    def match(cls, chain: Sequence[Node]) -> int:
        """How many nodes, from the first of the chain on, this layer can stand for; 0 if it cannot.

        Each node of the chain reads the only top of the one before it, which nobody else reads; backward runs for both
        or for neither of them.
        """
        raise NotImplementedError

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for node in self.nodes:
            node.reshape()

    def macs(self, bottom: list[Blob], top: list[Blob]) -> int:
        """Multiply-adds of one forward pass."""
        return sum(node.layer.macs(node.bottoms, node.tops) for node in self.nodes if hasattr(node.layer, "macs"))


_rules: list[type[FusedLayer]] = []
Change = Callable[[list[Node], Collection[Storage]], list[Node]]

_changes: list[Change] = []  # of whole programs for inference
_exact_changes: list[Change] = []  # those in their place that change no bits
_training_changes: list[Callable[[list[Node]], list[Node]]] = []


def register_fusion(rule: type[FusedLayer]) -> None:
    """Try this rule too, after those that have been registered before."""
    _rules.append(rule)


def register_change(change: Change, exact: Change) -> None:
    """Let this make other nodes of those of a program for inference, once all rules of fusion have been tried. It may
    change what lies between the nodes, but in the storages that it is given, and bits, which `exact` may not."""
    _changes.append(change)
    _exact_changes.append(exact)


def register_training_change(change: Callable[[list[Node]], list[Node]]) -> None:
    """Let this make other nodes of those of a program that trains, before any rule of fusion is tried."""
    _training_changes.append(change)


def rewrite(
    nodes: Sequence[Node], inference: bool, exact: bool = False, kept: Collection[Storage] = frozenset()
) -> list[Node]:
    """The nodes of a program that does what these nodes of a graph do; those of the graph are left as they are.

    With `exact` all values have the bits that they have layer by layer. Nodes that write into one of the storages in
    `kept` stay as they are, or are fused so that nobody sees it; those before them are fused among themselves.
    """
    rewritten = renumbered(nodes if inference else separated(nodes))
    for training_change in () if inference else _training_changes:
        rewritten = training_change(rewritten)
    for rule in _rules:
        if rule.exact if exact else not rule.only_exact:
            rewritten = renumbered(_fused(rewritten, rule, inference, kept))
    for change in (_exact_changes if exact else _changes) if inference else ():
        rewritten = change(rewritten, kept)
    return rewritten


def unseen_fusions(nodes: Sequence[Node]) -> dict[int, Node]:
    """Fused nodes, by the index of their first member, that may run in a forward pass in place of their members without
    anybody seeing it afterwards: all blobs, and what backward of the members reads, are the same."""
    found: dict[int, Node] = {}
    for rule in (rule for rule in _rules if rule.forward_is_unseen):
        for index in range(len(nodes)):
            chain = _chain(list(nodes), index, inference=True)
            count = rule.match(chain)
            if count and all(node.in_place for node in chain[1:count]):
                found.setdefault(index, _node_for(rule, chain[:count]))
    return found


def with_unseen(nodes: list[Node], fusions: dict[int, Node]) -> list[Node]:
    """These nodes of a graph, which follow one another, with `unseen_fusions` in the place of those they stand for."""
    run: list[Node] = []
    index, end = nodes[0].index if nodes else 0, nodes[-1].index + 1 if nodes else 0
    first = index
    while index < end:
        fused = fusions.get(index)
        if fused is None or index + len(fused.members) > end:
            fused = nodes[index - first]
        run.append(fused)
        index += len(fused.layers)
    return run


def renumbered(nodes: Sequence[Node]) -> list[Node]:
    """The same nodes, each with its place among these as its index."""
    return [replace(node, index=index, versions=[]) for index, node in enumerate(nodes)]


def separated(nodes: Sequence[Node]) -> list[Node]:
    """A layer in place whose backward reads its bottom would have to copy that before it overwrites it. Here whatever
    comes before it works on another blob instead, which is its bottom from then on. Both have one gradient.

    Not so where the backward of an earlier layer, such as a ReLU, reads this blob: in Caffe it sees what was written
    over its own values, and so it does here. Nor where the blob shares its data with another, as tops of a Split do.
    """
    made = renumbered(nodes)
    for index in range(len(made)):
        node = made[index]
        if node.layer.bottom_copy is None or not node.in_place or not node.needs_backward:
            continue
        old = node.bottoms[0]
        touching = [earlier for earlier in made[:index] if old in earlier.blobs]
        shares = any(blob is not old and blob._data is old._data for other in made[:index] for blob in other.blobs)
        if shares or any(old in other.layer.saved(other.bottoms, other.tops) for other in touching):
            continue
        new = Blob(old.xp, old.shape, channels_last=True, dtype=old.dtype)
        new.share_diff(old)
        made[:index] = [_with(earlier, old, new) for earlier in made[:index]]
        made[index] = replace(node, bottoms=[new])
    return made


def _with(node: Node, old: Blob, new: Blob) -> Node:
    bottoms = [new if blob is old else blob for blob in node.bottoms]
    tops = [new if blob is old else blob for blob in node.tops]
    return replace(node, bottoms=bottoms, tops=tops)


def _fused(nodes: list[Node], rule: type[FusedLayer], inference: bool, kept: Collection[Storage]) -> list[Node]:
    made: list[Node] = []
    index = 0
    while index < len(nodes):
        chain = _chain(nodes, index, inference)
        count = rule.match(chain)
        unseen = rule.forward_is_unseen and all(other.in_place for other in chain[1:count])
        if not unseen and (before := _before_kept(chain[:count], kept)) < count:
            count = rule.match(chain[:before]) if before else 0
        node = _node_for(rule, chain[:count]) if count else nodes[index]
        if count and not inference:
            others = [*nodes[:index], node, chain[count - 1]]
            if changes_what_backward_sees(node, chain[:count], others, nodes[index + count :]):
                node, count = nodes[index], 0
        made.append(node)
        index += max(1, count)
    return made


def _before_kept(chain: Sequence[Node], kept: Collection[Storage]) -> int:
    """How many nodes come before the first that writes what is kept."""
    writes = (any(blob._data in kept for blob in node.tops) for node in chain)
    return next((index for index, writes_it in enumerate(writes) if writes_it), len(chain))


def changes_what_backward_sees(
    fused: Node, replaced: Sequence[Node], readers: Sequence[Node], later: Sequence[Node]
) -> bool:
    """Whether some backward would read other values than in Caffe, where a layer in place may overwrite what backward
    of an earlier one reads: of a ReLU for instance, which then sees the signs of what became of its values.

    That is so if a reader saves a blob that the replaced nodes overwrite and the fused one does not, or a top of the
    fused node that a later node overwrites. A Dropout leaves the signs where it lets a gradient through.
    """
    read = {blob for node in readers for blob in node.layer.saved(node.bottoms, node.tops)}
    left_out = {blob for node in replaced if node.in_place for blob in node.tops} - set(fused.tops)
    writers = [node for node in later if node.layer.type not in ("Dropout", "Split")]
    overwritten = {blob for node in writers for blob in node.tops} & set(fused.tops)
    return bool(read & left_out or read & overwritten)


def _chain(nodes: list[Node], index: int, inference: bool) -> list[Node]:
    """The node at `index` and those right behind it that are linked to it as FusedLayer.match says."""
    chain = [nodes[index]]
    for node in nodes[index + 1 :]:
        before = chain[-1]
        if len(before.tops) != 1 or any(before.layer.loss_weights) or node.bottoms.count(before.tops[0]) != 1:
            break
        down = node.bottom_need_backward[node.bottoms.index(before.tops[0])]
        if not inference and not (before.needs_backward == node.needs_backward == down):
            break
        chain.append(node)
    return chain


def _node_for(rule: type[FusedLayer], chain: Sequence[Node]) -> Node:
    made = {blob for node in chain for blob in node.tops}
    outer = [
        (blob, blob_id, down)
        for number, node in enumerate(chain)
        for blob, blob_id, down in zip(node.bottoms, node.bottom_ids, node.bottom_need_backward, strict=True)
        if number == 0 or blob not in made
    ]
    node = node_in_place_of(rule(chain), chain, chain[0], chain[-1])
    return replace(
        node,
        bottoms=[blob for blob, _, _ in outer],
        bottom_ids=[blob_id for _, blob_id, _ in outer],
        bottom_need_backward=[down for _, _, down in outer],
    )


def node_in_place_of(layer: FusedLayer, nodes: Sequence[Node], first: Node, last: Node) -> Node:
    """One for a layer that does the work of these nodes, with the bottoms of the first and the tops of the last."""
    return replace(
        first,
        layer=layer,
        name=layer.name,
        tops=last.tops,
        top_ids=last.top_ids,
        needs_backward=last.needs_backward,
        has_loss=last.has_loss,
        members=tuple(member for node in nodes for member in (node.members or (node,))),
        versions=[],
    )
