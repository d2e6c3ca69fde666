"""Passes: a graph that runs forward and backward, over all layers or some."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from fcaffe.engines.engine import Pending
from fcaffe.net.apart import Apart
from fcaffe.net.arena import START, Arena
from fcaffe.net.arithmetic import is_finite, silent_arithmetic
from fcaffe.net.blob import Array
from fcaffe.net.debug_info import debug_backward, debug_forward
from fcaffe.net.graph import Graph
from fcaffe.net.hooks import Hooks
from fcaffe.net.node import Node
from fcaffe.net.on_demand import OnDemand
from fcaffe.net.program import Program
from fcaffe.net.recorded_training import RecordedTraining
from fcaffe.net.rewrite import with_unseen


class Exchange(Protocol):
    """Who takes gradients over while a backward pass goes on; see `fcaffe.solvers.exchange`."""

    on_streams: bool

    def begin(self, gradients: Array) -> None: ...

    def ready(self, start: int) -> None: ...

    def finish(self, stop: float = math.inf) -> None: ...


class Passes(Graph):
    """What Net makes: `plain` and `fused` are its programs, `program` is that of the last forward pass, which backward
    follows. `hooks` are of passes over the plain program."""

    plain: Program
    fused: Program
    program: Program
    arena: Arena
    hooks: Hooks
    on_demand: OnDemand | None
    debug_info: bool
    _apart: Apart | None
    _unseen: dict[int, Node]  # fusions by the index of their first member
    _loss: Array  # of a pass, where it stays on a device
    _losses_in_place: list[Node]

    def explain(self) -> None:
        """Raise what a layer finds wrong with its bottoms, once an output of an asynchronous engine is no number."""
        for node in self.nodes:
            node.layer.explain(node.bottoms)

    @property
    def fuses(self) -> bool:
        """Whether a whole pass runs another program than a pass over some of the layers."""
        return self.fused is not self.plain

    def forward(self, start: int = 0, end: int | None = None) -> float:
        """Run the layers from index `start` to `end`, both included; returns the weighted sum of the losses."""
        loss: float = self.start_forward(start, end).value()
        outputs = (blob.data for _, blob, _ in self.outputs())
        if self.context.engine.asynchronous and end is None and not all(map(is_finite, outputs)):
            self.explain()
        return loss

    @silent_arithmetic
    def start_forward(
        self, start: int = 0, end: int | None = None, need: Callable[[float], None] = lambda stop: None
    ) -> Pending:
        """The same, without waiting for the losses. `need` is called before parameters up to an offset of the flat
        buffer are read."""
        if self.on_demand is not None:
            if start != 0 or end is not None:
                self.on_demand.complete()
            else:
                layer_by_layer = self.debug_info or self.hooks.in_forward()
                if (loss := self.on_demand.forward(self._forward_node, layer_by_layer)) is not None:
                    self.program = self.plain
                    return Pending(loss)
        whole = start == 0 and end is None and not self.debug_info
        self.program = self._program_of(whole)
        whole &= self.fuses
        if self.fuses:
            self.arena.follow(self.program)
        nodes = self.program.nodes[start : None if end is None else end + 1]
        if not whole or self.context.engine.asynchronous:
            need(math.inf)
        if whole and self.context.engine.asynchronous:
            for node in nodes:
                if node.layer.traits.reads_host:
                    node.forward()
            self._repeat("forward", lambda: self._forward_on_device(nodes))
            return self.context.engine.read_later(self._loss)
        if start == 0:
            self.arena.move(START)
        if not whole and not self.debug_info and not self.hooks.in_forward():
            apart = self._apart if self.program is not self.plain else None
            nodes = with_unseen(nodes, self._unseen if apart is None else apart.unseen)
        if whole and nodes and self.program.inference and not self.hooks.in_forward():
            need(math.inf)
            if self.program.recorded.play(self.arena.version):
                return Pending(0.0)
        loss = 0.0
        recorded = None if self.hooks.in_forward() else self._recorded_training()
        stops = self.program.needs_until if whole else [math.inf] * len(nodes)
        for node, stop in zip(nodes, stops, strict=True):
            need(stop)
            if recorded is None or not recorded.forward(node):
                loss += self._forward_node(node)
        return Pending(loss)

    @silent_arithmetic
    def backward(self, start: int | None = None, end: int = 0, exchange: Exchange | None = None) -> None:
        """Run the layers' backward passes from index `start` (the last one) down to `end`, both included.

        An `exchange` is told, as the pass comes down, from which offset on the flat gradients are final. One whose sums
        are on streams is part of the pass, with `finish`, so that an engine may record it; of another the caller calls
        `finish`.
        """
        if self.on_demand is not None:
            self.on_demand.retire()
        if self._apart is not None and self.program is self._apart.program:
            self._apart.share_gradients()
        first = len(self.program.nodes) - 1 if start is None else start
        clear = self.parameters.clear()

        def work() -> None:
            for blob in clear:  # anew, if an engine tries to record the pass in vain and then runs it
                blob.clear_diff()
            if exchange is not None:
                exchange.begin(self.parameters.diff)
            self._backward_nodes(first, end, exchange)
            if exchange is not None and exchange.on_streams:
                exchange.finish()

        if not (self.fuses and self.program is self.fused) or not (exchange is None or exchange.on_streams):
            work()
        else:
            self._repeat(f"{'' if clear else 'adding '}{'lone ' if exchange is None else ''}backward", work)
            self.parameters.mark_written()
        if self.debug_info:
            self.parameters.debug()

    def _program_of(self, whole: bool) -> Program:
        """What a forward pass runs that begins now, over all layers or some."""
        if self.fuses:
            return self.fused if whole else self.plain
        if self._apart is None:
            return self.plain
        if whole and not self.hooks.in_forward():
            return self._apart.program
        if self.program is self._apart.program:
            self._apart.together()
        return self.plain

    def _forward_node(self, node: Node) -> float:
        """Returns the weighted sum of its losses."""
        for hook in self.hooks.before_forward:
            hook(node.index)
        node.forward()
        if self.debug_info:
            debug_forward(self, node)
        loss = node.layer.loss(node.tops) if node.has_loss else 0.0
        for hook in self.hooks.after_forward:
            hook(node.index)
        return loss

    def _recorded_training(self) -> RecordedTraining | None:
        """What may run nodes of the program in a whole pass that begins now."""
        program = self.program
        if self.debug_info or program.inference or not program.nodes:
            return None
        if self._apart is not None and program is self._apart.program:
            return program.training
        return program.training if self.fuses and program is self.fused and not self.arena.again else None

    def _forward_on_device(self, nodes: list[Node]) -> None:
        """All but the layers that read; the losses are added up in an array."""
        self.arena.move(START)
        self._loss[...] = 0
        for node in nodes:
            if node.layer.traits.reads_host:
                continue
            node.forward()
            for weight, blob in zip(node.layer.loss_weights, node.tops, strict=False):
                if weight:
                    self._loss += np.float32(weight) * blob.data.sum()

    def _backward_nodes(self, first: int, last: int, exchange: Exchange | None) -> None:
        engine, nodes = self.context.engine, self.program.nodes
        losses = zip(self.blobs, self.blob_loss_weights, strict=True)
        if first == len(nodes) - 1:
            for node in self._losses_in_place:  # backward has written the gradient of their bottom there
                node.layer.weigh_losses(node.tops)
        engine.scale_losses((blob.diff, weight) for blob, weight in losses if weight)
        if first == len(nodes) - 1:
            self.arena.move(START)
            self.arena.clear_unwritten()
        recorded = self._recorded_training() if first == len(nodes) - 1 and not engine.asynchronous else None
        if recorded is not None and (self.hooks.in_backward() or not recorded.holds()):
            recorded = None
        for index in range(first, last - 1, -1):
            node = nodes[index]
            if recorded is not None and node.needs_backward and recorded.backward(node):
                if exchange is not None:
                    exchange.ready(self.program.final_from[index])
                continue
            for hook in self.hooks.before_backward:
                hook(index)
            if index in self.arena.again:
                self.arena.move(index)
                for other in self.arena.again[index]:
                    nodes[other].layer.forward_again(nodes[other].bottoms, nodes[other].tops)
            if node.needs_backward:
                node.backward()
                if self.debug_info:
                    debug_backward(self, node)
            for layer in node.layers:
                for blob in layer.blobs:
                    blob.settle_diff()
            for hook in self.hooks.after_backward:
                hook(index)
            if exchange is not None:
                engine.settle_gradients()
                exchange.ready(self.program.final_from[index])
        engine.settle_gradients()

    def _repeat(self, what: str, work: Callable[[], None]) -> None:
        """Work of whole passes, which an engine may record, as long as no blob changes its shape or memory, and the
        seed stays."""
        engine = self.context.engine
        if not engine.asynchronous or any(node.layer.traits.needs_host for node in self.nodes):
            work()
            return
        engine.repeat(self, f"{what} pass", (self.context.seed, self.arena.version, *self.program.versions), work)
