"""Net: the graph of layers that a NetParameter describes, built as Caffe builds it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from google.protobuf import text_format

from fcaffe import log
from fcaffe.engines.engine import Pending
from fcaffe.errors import NetError
from fcaffe.net.backward_plan import plan_backward
from fcaffe.net.blob import Array, Blob
from fcaffe.net.context import Context
from fcaffe.net.filter import filter_net
from fcaffe.net.fusion import Fusions
from fcaffe.net.layer import Layer, create_layer
from fcaffe.net.memory_plan import START, Memory, MemoryPlan
from fcaffe.net.parameters import Parameters
from fcaffe.net.precision import choose_types
from fcaffe.net.splits import insert_splits, unknown_bottom

# A net that blows up does so in its log, not in NumPy's warnings: infinities and NaNs are ordinary values, as in C.
silent_arithmetic = np.errstate(all="ignore")

AUTOMATIC = "(automatic)"  # Caffe's name for a top that the prototxt left out


@dataclass
class Node:
    """A layer in its place: the blobs it is connected to, and what backward has to do for it."""

    index: int
    layer: Layer
    name: str
    bottoms: list[Blob]
    tops: list[Blob]
    bottom_ids: list[int]
    top_ids: list[int]
    bottom_need_backward: list[bool]
    needs_backward: bool = False
    has_loss: bool = False
    versions: list[int] = field(default_factory=list)  # of the blobs, when they were reshaped last

    def reshape(self) -> None:
        """Let the layer take over the shapes of its bottoms, if need be."""
        if self.layer.reshapes_by_shape:
            if self.versions == [blob.version for blob in self.blobs]:
                return
            self.layer.reshape(self.bottoms, self.tops)
            self.versions = [blob.version for blob in self.blobs]
        else:
            self.layer.reshape(self.bottoms, self.tops)

    def forward(self) -> None:
        self.reshape()
        self.layer.forward(self.bottoms, self.tops)

    @functools.cached_property
    def blobs(self) -> list[Blob]:
        return [*self.bottoms, *self.tops]


class Handover(Protocol):
    """Who takes gradients over while a backward pass goes on."""

    def begin(self) -> None: ...

    def ready(self, layer: int) -> None:
        """The layer of this index is through, and so are all behind it."""

    def finish(self) -> None: ...


class Net:
    """Layers in order, the blobs between them, and their parameters.

    Arguments: a NetParameter in present form (see `fcaffe.proto.read_net`) whose `state` holds phase, level and
    stages, and the context that it runs in. Raises NetError, naming the layer, for whatever cannot be built.
    """

    def __init__(self, param: Any, context: Context) -> None:
        param = filter_net(param)
        log.initializing_net(text_format.MessageToString(param))
        param = insert_splits(param)
        self.context = context
        self.name: str = param.name
        self.phase: int = param.state.phase
        self.debug_info: bool = param.debug_info
        self.nodes: list[Node] = []
        self.blobs: list[Blob] = []
        self.blob_names: list[str] = []
        self.blob_loss_weights: list[float] = []
        self.input_ids: list[int] = []
        self.output_ids: list[int] = []
        self.parameters = Parameters(context.engine.parameter_step)
        self.memory_bytes = 0
        self._ids: dict[str, int] = {}  # blob name -> newest index
        self._unread: set[str] = set()
        self._blob_needs_backward: list[bool] = []

        for layer_param in param.layer:
            if not layer_param.HasField("phase"):
                layer_param.phase = self.phase
            self._append_layer(layer_param)
        plan_backward(self, param.force_backward)
        self.fusions = Fusions(self.nodes)
        self._loss = context.engine.xp.zeros(1, np.float64)  # of a pass, where it stays on a device
        for name in sorted(self._unread):
            log.produces_output(name)
            self.output_ids.append(self._ids[name])
        choose_types(self)
        self.memory_plan = MemoryPlan(self)
        self.parameters.share()
        log.net_done()

    # --- running ------------------------------------------------------------------------------------------------------

    def forward(self, start: int = 0, end: int | None = None) -> float:
        """Run the layers from index `start` to `end`, both included; returns the weighted sum of the losses."""
        loss: float = self.start_forward(start, end).value()
        outputs = (blob.data for _, blob, _ in self.outputs())
        if self.context.engine.asynchronous and end is None and not all(map(_finite, outputs)):
            self.explain()
        return loss

    @silent_arithmetic
    def start_forward(self, start: int = 0, end: int | None = None) -> Pending:
        """The same, without waiting for the losses."""
        if self.context.whole_passes:
            self.memory_plan.follow()
        whole = self.context.whole_passes and start == 0 and end is None and not self.debug_info
        self.fusions.activate(whole)
        nodes = self.nodes[start : None if end is None else end + 1]
        if not (whole and self.context.engine.asynchronous):
            if self.context.whole_passes and start == 0:
                self._rewind()
            return Pending(sum((self._forward_layer(node) for node in nodes), 0.0))
        for node in self.nodes:
            if node.layer.reads_host:
                node.forward()
        self._repeat("forward", lambda: self._forward_on_device(nodes))
        return self.context.engine.read_later(self._loss)

    @silent_arithmetic
    def backward(
        self,
        start: int | None = None,
        end: int = 0,
        on_done: Callable[[int], None] | None = None,
        handover: Handover | None = None,
    ) -> None:
        """Run the layers' backward passes from index `start` (the last one) down to `end`, both included.

        `on_done` is called with the index of each layer when it is through. So is `handover`, which counts as part of
        the pass: an engine that has recorded it calls it no more.
        """
        first = len(self.nodes) - 1 if start is None else start
        cleared = [parameter.blob for parameter in self.parameters.owned if parameter.blob.is_clear]

        def work() -> None:
            for blob in cleared:  # anew, if an engine has tried to record it in vain
                blob.is_clear = True
            if handover is None:
                self._backward_layers(first, end, on_done)
                return
            handover.begin()
            self._backward_layers(first, end, handover.ready)
            handover.finish()

        if start is None and end == 0 and self.fusions.active and on_done is None:
            what = ("" if cleared else "adding ") + ("backward" if handover else "lone backward")
            self._repeat(what, work)
            for parameter in self.parameters.owned:
                parameter.blob.is_clear = False
        else:
            work()
        if self.debug_info:
            self.parameters.debug()

    def _forward_layer(self, node: Node) -> float:
        """Returns the weighted sum of its losses."""
        if self.fusions.skips_forward(node.index):
            return 0.0
        node.forward()
        if self.debug_info:
            self._debug_forward(node)
        return node.layer.loss(node.tops) if node.has_loss else 0.0

    def _forward_on_device(self, nodes: list[Node]) -> None:
        """All but the layers that read; the losses are added up in an array."""
        self._rewind()
        self._loss[...] = 0
        for node in nodes:
            if node.layer.reads_host or self.fusions.skips_forward(node.index):
                continue
            node.forward()
            for weight, blob in zip(node.layer.loss_weights, node.tops, strict=False):
                if weight:
                    self._loss += np.float32(weight) * blob.data.sum()

    def _backward_layers(self, first: int, last: int, on_done: Callable[[int], None] | None) -> None:
        losses = zip(self.blobs, self.blob_loss_weights, strict=True)
        self.context.engine.scale_losses((blob.diff, weight) for blob, weight in losses if weight)
        if first == len(self.nodes) - 1:
            self.memory_plan.move(START)
        for index in range(first, last - 1, -1):
            if index in self.memory_plan.again:
                self.memory_plan.move(index)
                self._forward_again(self.memory_plan.again[index])
            if self.fusions.skips_backward(index):
                continue
            node = self.nodes[index]
            if node.needs_backward:
                node.layer.backward(node.tops, node.bottom_need_backward, node.bottoms)
                if self.debug_info:
                    self._debug_backward(node)
            for done in self.fusions.done_with(index):
                for blob in self.nodes[done].layer.blobs:
                    blob.settle_diff()
                if on_done is not None:
                    on_done(done)
        self.context.engine.settle_gradients()

    def _rewind(self) -> None:
        """Bring all blobs to where a pass begins."""
        for node in self.nodes:
            node.layer.rewind()
        self.memory_plan.move(START)

    def _forward_again(self, indices: tuple[int, ...], rewind: bool = True) -> None:
        """Compute what was not kept since the forward pass."""
        self.context.recomputing = True
        try:
            for index in indices if rewind else ():
                self.nodes[index].layer.rewind()
            for index in indices:
                if not self.fusions.skips_forward(index):
                    self.nodes[index].layer.forward(self.nodes[index].bottoms, self.nodes[index].tops)
        finally:
            self.context.recomputing = False

    def _repeat(self, what: str, work: Callable[[], None]) -> None:
        """Work of whole passes, which an engine may record, as long as no blob changes its shape or place, and the
        seed stays."""
        engine = self.context.engine
        if not engine.asynchronous or any(node.layer.needs_host for node in self.nodes):
            work()
            return
        signature = (self.context.seed, *(blob.version for blob in self.blobs))
        engine.repeat(self, f"{what} pass", signature, work)

    def reshape(self) -> None:
        """Let every layer take over the shapes of its bottoms, after an input blob was reshaped."""
        for node in self.nodes:
            node.reshape()

    def close(self) -> None:
        """Stop the layers' threads and close their files."""
        for node in self.nodes:
            node.layer.close()

    # --- looking things up --------------------------------------------------------------------------------------------

    @property
    def layers(self) -> list[Layer]:
        return [node.layer for node in self.nodes]

    @property
    def layer_names(self) -> list[str]:
        return [node.name for node in self.nodes]

    @property
    def memory(self) -> Memory:
        """What one pass takes."""
        return self.memory_plan.report()

    @property
    def batch_size(self) -> int:
        """Samples of one pass: the first dimension of the first blob."""
        return self.blobs[0].shape[0] if self.blobs and self.blobs[0].shape else 1

    def blob(self, name: str) -> Blob:
        """The blob of this name, as the last layer that made one left it."""
        return self.blobs[self._ids[name]]

    def outputs(self) -> list[tuple[str, Blob, float]]:
        """Name, blob and loss weight of every output, in alphabetical order."""
        return [(self.blob_names[i], self.blobs[i], self.blob_loss_weights[i]) for i in self.output_ids]

    def explain(self) -> None:
        """Raise what a layer finds wrong with its bottoms, once an output of an asynchronous engine is no number."""
        for node in self.nodes:
            node.layer.explain(node.bottoms)

    @silent_arithmetic
    def first_bad_blob(self) -> str | None:
        """Which value of the forward pass was the first that is not finite, or None.

        Values that others have overwritten since are computed again.
        """
        gone = [any(self.memory_plan.has_placed(blob) for blob in node.tops) for node in self.nodes]
        if any(gone):
            self._rewind()
        for node in self.nodes:
            for index, blob in enumerate(node.layer.blobs):
                if not _finite(blob.data):
                    return f'parameter {index} of layer "{node.name}"'
            if gone[node.index]:
                self._forward_again((node.index,), rewind=False)
            for index, blob in zip(node.top_ids, node.tops, strict=True):
                if not _finite(blob.data):
                    return f'blob "{self.blob_names[index]}" (top of layer "{node.name}")'
        return None

    # --- building -----------------------------------------------------------------------------------------------------

    def _append_layer(self, param: Any) -> None:
        if param.propagate_down and len(param.propagate_down) != len(param.bottom):
            raise NetError(
                f'layer "{param.name}": propagate_down must be given once per bottom or not at all: '
                f"{len(param.propagate_down)} for {len(param.bottom)} bottom(s)"
            )
        layer = create_layer(param, self.context)
        log.creating_layer(param.name)
        node = Node(len(self.nodes), layer, param.name, [], [], [], [], [])
        for index in range(len(param.bottom)):
            self._append_bottom(node, param, index)
        for index in range(len(param.top)):
            self._append_top(node, param, index)
        if layer.auto_tops:
            needed = layer.tops if isinstance(layer.tops, int) else layer.tops[0]
            for index in range(len(param.top), needed):
                self._append_top(node, param, index)
        layer.initialize(node.bottoms, node.tops)
        node.has_loss = any(layer.loss_weights)
        self.nodes.append(node)
        self._narrate(node)
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

    def _append_bottom(self, node: Node, param: Any, index: int) -> None:
        name = param.bottom[index]
        if name not in self._unread:
            raise NetError(unknown_bottom(param.name, index, name, self._unread))
        blob_id = self._ids[name]
        log.bottom_connected(param.name, name)
        node.bottoms.append(self.blobs[blob_id])
        node.bottom_ids.append(blob_id)
        self._unread.discard(name)
        needed = param.propagate_down[index] if param.propagate_down else self._blob_needs_backward[blob_id]
        node.bottom_need_backward.append(needed)

    def _append_top(self, node: Node, param: Any, index: int) -> None:
        given = index < len(param.top)
        name = param.top[index] if given else AUTOMATIC
        in_place = given and index < len(param.bottom) and name == param.bottom[index]
        if not in_place:
            if given and name in self._ids:
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
            if given:
                self._ids[name] = blob_id
        else:
            blob_id = self._ids[name]
        log.top_connected(param.name, name, in_place)
        node.tops.append(self.blobs[blob_id])
        node.top_ids.append(blob_id)
        if given:
            self._unread.add(name)
        if param.type == "Input":
            self.input_ids.append(blob_id)

    def _narrate(self, node: Node) -> None:
        log.setting_up(node.name)
        for blob_id, blob, weight in zip(node.top_ids, node.tops, node.layer.loss_weights, strict=True):
            self.blob_loss_weights[blob_id] = weight
            log.top_shape(blob.shape, weight)
            self.memory_bytes += 4 * blob.count
        log.memory_required(self.memory_bytes)

    # --- debug_info ---------------------------------------------------------------------------------------------------

    def _debug_forward(self, node: Node) -> None:
        for blob_id, blob in zip(node.top_ids, node.tops, strict=True):
            log.debug_forward(node.name, "top blob", self.blob_names[blob_id], _mean_magnitude(blob.data))
        for index, blob in enumerate(node.layer.blobs):
            name = self.parameters.display_name(node.layer, index)
            log.debug_forward(node.name, "param blob", name, _mean_magnitude(blob.data))

    def _debug_backward(self, node: Node) -> None:
        self.context.engine.settle_gradients()
        for blob_id, blob, needed in zip(node.bottom_ids, node.bottoms, node.bottom_need_backward, strict=True):
            if needed:
                log.debug_backward(node.name, "bottom blob", self.blob_names[blob_id], _mean_magnitude(blob.diff))
        for index, blob in enumerate(node.layer.blobs):
            if node.layer.param_propagate_down[index]:
                log.debug_backward(node.name, "param blob", str(index), _mean_magnitude(blob.diff))


def _mean_magnitude(values: Array) -> float:
    return float(abs(values).sum() / values.size) if values.size else 0.0


def _finite(values: Array) -> bool:
    return bool(abs(values).sum() < float("inf")) or bool((abs(values) < float("inf")).all())
