"""The graph of a net: its layers and the blobs between them, put together as Caffe does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import text_format

from fcaffe import log
from fcaffe.errors import NetError
from fcaffe.net.blob import Blob, Storage
from fcaffe.net.build.filter import filter_net
from fcaffe.net.build.redistribute import Redistribute
from fcaffe.net.build.splits import insert_splits, unsplit_names
from fcaffe.net.context import Context
from fcaffe.net.layer import Half, Layer
from fcaffe.net.node import Node
from fcaffe.net.parameters import Parameters
from fcaffe.net.placements import LOCAL, REPLICATE, Local, Placement, Replicate, Shard, differs, replicated
from fcaffe.net.registry import create_layer

AUTOMATIC = "(automatic)"  # Caffe's name for a top that the prototxt left out


class Graph:
    """Layers in order, the blobs between them, their parameters, and the gradients that backward computes.

    The NetParameter is in present form (see `fcaffe.proto.read_net`), and its `state` has phase, level and stages.
    Raises NetError, naming the layer, for whatever cannot be built.
    """

    def __init__(self, param: Any, context: Context) -> None:
        param = filter_net(param)
        log.initializing_net(log.message_string(text_format.MessageToString(param)))
        filtered, param = param, insert_splits(param)
        self._unsplit = unsplit_names(filtered, param)
        self.context = context
        self.name: str = param.name
        self.phase: int = param.state.phase
        self.nodes: list[Node] = []
        self.blobs: list[Blob] = []
        self.blob_names: list[str] = []
        self.blob_loss_weights: list[float] = []
        self.input_ids: list[int] = []
        self.output_ids: list[int] = []
        self.parameters = Parameters(context.engine.parameter_step)
        self.memory_bytes = 0  # of all tops, as Caffe counts them
        self._ids: dict[str, int] = {}  # blob name -> newest index
        self._keys: dict[str, int] = {}  # of the layers, with the number of those of the same name
        self._unread: dict[str, None] = {}  # a set in the order of the layers, which is the same on all workers
        self._blob_needs_backward: list[bool] = []

        for layer_param in param.layer:
            if not layer_param.HasField("phase"):
                layer_param.phase = self.phase
        self._params = list(param.layer)
        self._created: dict[int, Layer] = {}
        self._in_place_behind = _in_place_behind(self._params) if context.workers.size > 1 else []
        for index, layer_param in enumerate(self._params):
            self._append_layer(layer_param, index)
        _plan_backward(self.nodes, param.force_backward)
        if context.workers.size > 1 and not context.workers.per_worker:
            self._gather_outputs()
        for name in sorted(self._unread):
            log.produces_output(name)
            self.output_ids.append(self._ids[name])
        _copy_bottoms(self.nodes)
        _choose_types(self)

    @property
    def layers(self) -> list[Layer]:
        return [node.layer for node in self.nodes]

    @property
    def layer_names(self) -> list[str]:
        return [node.name for node in self.nodes]

    @property
    def batch_size(self) -> int:
        """Samples of one pass: the first dimension of the first blob."""
        return self.blobs[0].shape[0] if self.blobs and self.blobs[0].shape else 1

    def blob(self, name: str) -> Blob:
        """The newest blob of this name."""
        return self.blobs[self._ids[name]]

    def outputs(self) -> list[tuple[str, Blob, float]]:
        """Name, blob and loss weight of every output, in alphabetical order."""
        return [(self.blob_names[i], self.blobs[i], self.blob_loss_weights[i]) for i in self.output_ids]

    def _append_layer(self, param: Any, index: int) -> None:
        if param.propagate_down and len(param.propagate_down) != len(param.bottom):
            raise NetError(
                f'layer "{param.name}": propagate_down must be given once per bottom or not at all: '
                f"{len(param.propagate_down)} for {len(param.bottom)} bottom(s)"
            )
        key = self._new_key(param.name)
        reader = self.context.readers.get(key)
        layer = reader.layer if reader else self._layer(index)
        layer.key = key
        layer.bottom_names = [self._unsplit.get(name, name) for name in param.bottom]
        log.creating_layer(param.name)
        placements = self._redistribute(layer, param, index) if self.context.workers.size > 1 else []
        node = Node(len(self.nodes), layer, [], [], [])
        for index in range(len(param.bottom)):
            self._append_bottom(node, param, index)
        for index in range(max(len(param.top), layer.automatic_tops)):
            self._append_top(node, param, index)
        for index, blob in enumerate(node.tops if placements else ()):
            blob.placement = placements[min(index, len(placements) - 1)]
        if reader:
            for blob, other in zip(node.tops, reader.tops, strict=True):
                blob.reshape(*other.shape)
                blob.placement = other.placement
        else:
            layer.initialize(node.bottoms, node.tops)
        self._append_node(node)
        if self.context.workers.size > 1 and not reader:
            layer.share_loss_weights(node.tops)
            if not (node.bottoms or self.context.workers.per_worker):
                layer.is_split = any(isinstance(blob.placement, Shard | Local) for blob in node.tops)
        needs = any(self._blob_needs_backward[i] for i in node.bottom_ids)
        if len(layer.param.param) > len(layer.blobs):
            raise layer.error(f"has {len(layer.blobs)} parameter blob(s), but {len(layer.param.param)} param entries")
        for index in range(len(layer.blobs)):
            learns = index >= len(param.param) or param.param[index].lr_mult != 0
            layer.param_propagate_down[index] = learns
            needs |= learns
            self.parameters.append(layer, index)
        node.needs_backward = needs
        for i in node.top_ids:
            self._blob_needs_backward[i] |= needs

    def _new_key(self, name: str) -> str:
        """The name of a layer, or, if other layers have the same, name and number."""
        key = name
        while key in self._keys:
            self._keys[name] += 1
            key = f"{name} ({self._keys[name]})"
        self._keys[key] = 1
        return key

    def _append_node(self, node: Node) -> None:
        self.nodes.append(node)
        log.setting_up(node.name)
        for blob_id, blob, weight in zip(node.top_ids, node.tops, node.layer.loss_weights, strict=True):
            self.blob_loss_weights[blob_id] = weight
            log.top_shape(blob.shape, weight)
            self.memory_bytes += 4 * blob.count
        log.memory_required(self.memory_bytes)

    def _redistribute(self, layer: Layer, param: Any, index: int) -> Sequence[Placement]:
        """Insert nodes that give the bottoms of a layer the placements which it needs. Returns those of its tops."""
        bottom = [self.blobs[self._ids[name]] for name in param.bottom]
        if not (bottom or layer.traits.runs_user_code):
            return []
        layer.check_count(len(bottom), layer.traits.bottoms, "bottom", "input")
        needed, tops = layer.doing(layer.rule, bottom)
        if self.context.workers.per_worker:  # each has a batch of its own, so its layers are as on one worker
            if layer.traits.runs_user_code and layer.param.loss_weight:  # the mean over the batch
                return [REPLICATE]
            changed = any(differs(blob.placement, other) for blob, other in zip(bottom, needed, strict=True))
            return [Shard(0, 1, chosen_by=layer)] if changed else tops
        if not all(one.keeps(tops[0], bottom[0]) for one in self._overwriting(layer, index)):
            needed, tops = replicated(layer, bottom)
        layer.is_split = any(isinstance(placement, Shard | Local) for placement in needed)
        for name, blob, placement in zip(param.bottom, bottom, needed, strict=True):
            if differs(blob.placement, placement):
                self._append_redistribute(name, layer, placement)
        return tops

    def _layer(self, index: int) -> Layer:
        """The layer of this index in the prototxt, which is created when it is first asked for."""
        if index not in self._created:
            self._created[index] = create_layer(self._params[index], self.context)
        return self._created[index]

    def _overwriting(self, layer: Layer, index: int) -> list[Layer]:
        """The later layers that overwrite what backward of this one reads, as in Caffe. They must work in the very
        memory of its top, so its top must have a placement that all of them keep."""
        traits, in_place = layer.traits, layer.param.top[:1] == layer.param.bottom[:1]
        reads_bottom = traits.reads == "bottoms" and in_place and traits.copies_bottom == "never"
        reads = traits.reads in ("tops", "both") or reads_bottom
        return [self._layer(later) for later in self._in_place_behind[index]] if reads else []

    def _append_redistribute(self, name: str, reader: Layer, placement: Placement) -> None:
        """Give the blob of this name another placement, for this layer and later ones."""
        source = self._ids[name]
        layer = Redistribute(name, self.context, reader, self.blobs[source].placement, placement)
        layer.bottom_names = [self._unsplit.get(name, name)]
        node = Node(len(self.nodes), layer, [], [], [])
        self._append_bottom(node, layer.param, 0)
        self._append_top(node, layer.param, 0)
        node.tops[0].placement = placement
        layer.initialize(node.bottoms, node.tops)
        self._append_node(node)
        top = node.top_ids[0]
        del self._unread[layer.name]
        self._ids[name] = self._ids.pop(layer.name)
        self.blob_names[top], self.blob_loss_weights[top] = name, self.blob_loss_weights[source]
        self._blob_needs_backward[top] = node.needs_backward = self._blob_needs_backward[source]

    def _gather_outputs(self) -> None:
        """Gather outputs whose parts have other lengths in each pass."""
        for name in list(self._unread):
            blob = self.blobs[self._ids[name]]
            if blob.placement == LOCAL or (isinstance(blob.placement, Shard) and blob.placement.chosen_by):
                maker = next(node.layer for node in reversed(self.nodes) if blob in node.tops)
                self._append_redistribute(name, maker, Replicate(chosen_by=maker))
                self.nodes[-1].needs_backward, self.nodes[-1].bottom_need_backward = False, [False]
                self._unread[name] = None

    def _append_bottom(self, node: Node, param: Any, index: int) -> None:
        name = param.bottom[index]
        blob_id = self._ids[name]
        log.bottom_connected(param.name, name)
        node.bottoms.append(self.blobs[blob_id])
        node.bottom_ids.append(blob_id)
        self._unread.pop(name, None)
        needed = param.propagate_down[index] if param.propagate_down else self._blob_needs_backward[blob_id]
        node.bottom_need_backward.append(needed)

    def _append_top(self, node: Node, param: Any, index: int) -> None:
        named = index < len(param.top)
        name = param.top[index] if named else AUTOMATIC
        in_place = named and index < len(param.bottom) and name == param.bottom[index]
        if not in_place:
            if named and name in self._ids:
                maker = next(n.name for n in reversed([*self.nodes, node]) if self._ids[name] in n.top_ids)
                raise NetError(
                    f"Top blob '{name}' produced by multiple sources: layers '{maker}' and '{param.name}'; "
                    "give one of them another top name"
                )
            blob_id = len(self.blobs)
            self.blobs.append(Blob(self.context.engine.xp, (), channels_last=True))
            self.blob_names.append(name)
            self.blob_loss_weights.append(0.0)
            self._blob_needs_backward.append(False)
            if named:
                self._ids[name] = blob_id
        else:
            blob_id = self._ids[name]
        (log.top_in_place if in_place else log.top_connected)(param.name, name)
        node.tops.append(self.blobs[blob_id])
        node.top_ids.append(blob_id)
        if named:
            self._unread[name] = None
        if param.type == "Input":
            self.input_ids.append(blob_id)


def _in_place_behind(params: Sequence[Any]) -> list[list[int]]:
    """For each layer the indices of the later layers that work in place on its tops."""
    on_blob: dict[str, list[int]] = {}
    behind: list[list[int]] = [[] for _ in params]
    for index, param in reversed(list(enumerate(params))):
        behind[index] = [later for top in param.top for later in on_blob.get(top, ())]
        in_place = {*param.top} & {*param.bottom}
        on_blob.update({top: [index, *on_blob.get(top, ())] if top in in_place else [] for top in param.top})
    return behind


def _plan_backward(nodes: Sequence[Node], force: bool) -> None:
    """Set `needs_backward` and `bottom_need_backward` of every node: on a path from a learning parameter to a loss.

    `force` (force_backward) then selects everything except bottoms that never have a gradient. Finally the bottoms are
    selected to which Caffe's layers write gradients regardless of `propagate_down`.
    """
    under_loss: set[int] = set()
    skipped: set[int] = set()
    for node in reversed(nodes):
        weights = node.layer.loss_weights
        contributes = any(weight or i in under_loss for i, weight in zip(node.top_ids, weights, strict=True))
        if not contributes or (node.needs_backward and all(i in skipped for i in node.top_ids)):
            node.needs_backward = False
            node.bottom_need_backward = [False] * len(node.bottoms)
        (log.needs_backward if node.needs_backward else log.needs_no_backward)(node.name)
        for blob_id, needed in zip(node.bottom_ids, node.bottom_need_backward, strict=True):
            if contributes:
                under_loss.add(blob_id)
            if not needed:
                skipped.add(blob_id)
    if force:
        for node in nodes:
            node.needs_backward = True
            node.layer.param_propagate_down = [True] * len(node.layer.blobs)
    read = {i for node in nodes if node.needs_backward for i in node.top_ids}
    for node in nodes:
        layer = node.layer
        ignored = node.needs_backward and layer.ignores_propagate_down
        for index, blob_id in enumerate(node.bottom_ids):
            # Training from the command line exposes no gradient that no layer reads.
            written = ignored and (blob_id in read or not layer.context.whole_passes)
            if (force or written) and layer.allow_force_backward(index):
                node.bottom_need_backward[index] = True


def _copy_bottoms(nodes: Sequence[Node]) -> None:
    """Set `before` of in-place nodes whose layers keep a copy of their bottom in Caffe."""
    overwritten: set[Storage] = set()
    for node in reversed(nodes):
        copies = node.layer.traits.copies_bottom
        if node.in_place:
            overwritten.add(node.tops[0].data_storage)
        if copies != "never" and (node.in_place or copies == "always") and node.bottoms[0].data_storage in overwritten:
            node.before = Blob(node.layer.xp, (), channels_last=True)


def _choose_types(net: Graph) -> None:
    """On an engine with factors of 16 bits, give 16 bits to each activation whose layers all support that. The net's
    inputs and outputs stay float32, and so do labels, losses and parameters."""
    half = net.context.engine.half_dtype
    if half is None:
        return
    wide = {net.blobs[index] for index in (*net.input_ids, *net.output_ids)}
    of_one_type = []  # the blobs of each layer that gives them one type
    for node in net.nodes:
        rule = node.layer.traits.half
        if rule is Half.SAME or (rule is Half.SAME_IN_XP and net.context.engine.half_arithmetic):
            of_one_type.append(set(node.blobs))
        elif rule in (Half.NONE, Half.SAME_IN_XP):
            wide.update(node.blobs)
        elif rule is Half.FIRST:
            wide.update((*node.bottoms[1:], *node.tops))
    before = -1
    while len(wide) > before:
        before = len(wide)
        for blobs in of_one_type:
            if not wide.isdisjoint(blobs):
                wide |= blobs
    for blob in net.blobs:
        if blob not in wide:
            blob.set_dtype(half)
    for node in net.nodes:
        if node.before is not None:
            node.before.set_dtype(node.bottoms[0].dtype)
