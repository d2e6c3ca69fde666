"""Net: a graph of layers that runs, forward and backward."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.engines.base import Pending
from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.blob import Array, Blob, Storage
from fcaffe.net.build.graph import Graph
from fcaffe.net.context import Context
from fcaffe.net.exchange import GradientExchange
from fcaffe.net.node import Hook, Node
from fcaffe.net.parameters import spec_of
from fcaffe.net.placements import Shard
from fcaffe.net.run.arena import START, Arena, Memory, memory_of
from fcaffe.net.run.program import Program
from fcaffe.net.run.rewrite import Want, rewrite
from fcaffe.net.script.on_demand import OnDemand
from fcaffe.rng.counter import Moment


class Net(Graph):
    """A graph that runs. Arguments and errors are those of Graph.

    A whole pass runs a program: the nodes of the graph, rewritten for the blobs that the pass must leave behind
    (`fcaffe.net.run.rewrite`). These are the outer ones if only whole passes run; the blobs a script reads, as long as
    it only runs forward; else all. A pass over some of the layers, or with hooks or `debug_info`, runs `plain`: the
    graph as it is. `program` is that of the last forward pass, which backward follows.
    """

    def __init__(self, param: Any, context: Context) -> None:
        context.engine.make_current()
        super().__init__(param, context)
        self.debug_info: bool = param.debug_info
        self.hooks: dict[str, list[Hook]] = defaultdict(list)  # called "before_forward" of a layer, and so on
        self.arena = Arena(context.recompute)
        self._loss = context.engine.xp.zeros(1, np.float64)  # the loss of a pass, if it stays on a device
        self._weighed: dict[Blob, tuple[Storage, tuple[int, ...], float]] = {}  # memory and weight of losses' gradients
        self.fuses = context.whole_passes  # only whole passes run, which leave behind the outer blobs alone
        self.plain = self.program = Program(self.nodes, self.outer, self.parameters, not context.inference)
        on_demand = context.on_demand and OnDemand.suits(self)
        self.on_demand = OnDemand(self, self.outer, self.arena, self.new_program) if on_demand else None
        self.parameters.share()
        self.weigh_losses()
        log.net_done()

    @functools.cached_property
    def outer(self) -> frozenset[Blob]:
        """The blobs that are written or read from outside, so their values outlive a pass."""
        ends = {*self.input_ids, *self.output_ids}
        return frozenset(blob for i, blob in enumerate(self.blobs) if i in ends or self.blob_loss_weights[i])

    def expose(self, *blobs: Blob) -> None:
        """Let the values of these blobs outlive whole passes as well."""
        if not self.outer.issuperset(blobs):
            self.outer |= {*blobs}
            vars(self).pop("fused", None)

    @functools.cached_property
    def fused(self) -> Program:
        """The program of whole passes if only those run."""
        return self.new_program(Want(self.outer, not self.context.inference))

    def new_program(self, want: Want) -> Program:
        """A program whose whole passes compute the wanted blobs."""
        outer = self.blobs if want.visible is None else want.visible
        return Program(rewrite(self.nodes, want), outer, self.parameters, want.gradients)

    @contextlib.contextmanager
    def whole_passes(self) -> Iterator[None]:
        """In its body only whole passes run (see Context)."""
        self.complete()
        before, self.fuses = self.fuses, True
        try:
            yield
        finally:
            self.fuses = before
            if not before:
                self.program = self.plain
                self.arena.release()

    def forward(self, start: int = 0, end: int | None = None, moment: Moment | None = None) -> float:
        """Run the layers from index `start` to `end`, both included; returns the weighted sum of the losses. `moment`
        says which pass of a training or a test this is."""
        loss: float = self.start_forward(start, end, moment).value()
        engine = self.context.engine
        may_hide_errors = engine.asynchronous and end is None
        if may_hide_errors and not all(engine.is_finite(blob.data) for _, blob, _ in self.outputs()):
            self.explain()
        return loss

    @silent_arithmetic
    def start_forward(self, start: int = 0, end: int | None = None, moment: Moment | None = None) -> Pending:
        """The same, without waiting for the losses."""
        self.context.engine.make_current()
        program = self._begin_pass(start == 0 and end is None)
        self.context.begin_pass(moment)
        try:
            loss = self._run(program, program.nodes[start : None if end is None else end + 1])
        except BaseException:
            self.arena.release()
            raise
        if self.on_demand is not None and not self.fuses:
            self.on_demand.end_pass(program)
        self.weigh_losses()
        return loss

    def _begin_pass(self, whole: bool) -> Program:
        """Choose the program of the coming pass and give its blobs their memory."""
        program, in_arena = self.plain, self.fuses
        if self.on_demand is not None:
            self.on_demand.forget() if whole else self.on_demand.complete()
        if whole and not (self.debug_info or self.hooks["before_forward"] or self.hooks["after_forward"]):
            if self.fuses:
                program = self.fused
            elif self.on_demand is not None:
                program, in_arena = self.on_demand.program()
        if in_arena:
            self.arena.follow(program)
        else:
            self.arena.release()
        self.arena.move(START)
        self.program = program
        self.context.saves_for_backward = not program.inference
        return program

    def _run(self, program: Program, nodes: list[Node]) -> Pending:
        if program is not self.plain and self.context.engine.asynchronous:
            return self._start_on_device(nodes)
        if program is not self.plain and program.replay is not None:
            return Pending(program.replay.forward(self._forward_node))
        return Pending(sum(map(self._forward_node, nodes), 0.0))

    def _forward_node(self, node: Node) -> float:
        """Returns the weighted sum of its losses."""
        for hook in self.hooks["before_forward"]:
            hook(node.index)
        node.forward()
        if self.debug_info:
            self._debug_forward(node)
        loss = node.loss()
        for hook in self.hooks["after_forward"]:
            hook(node.index)
        return loss

    def _start_on_device(self, nodes: list[Node]) -> Pending:
        """Layers that bring data from the host run first. The engine records the rest."""
        for node in nodes:
            if node.layer.traits.reads_host:
                node.forward()
        self._repeat("forward", lambda: self._forward_on_device(nodes))
        return self.context.engine.read_later(self._loss)

    def _forward_on_device(self, nodes: list[Node]) -> None:
        """All layers except the readers."""
        self.arena.move(START)
        self._loss[...] = 0
        for node in nodes:
            if node.layer.traits.reads_host:
                continue
            node.forward()
            for weight, blob in zip(node.layer.loss_weights, node.tops, strict=False):
                if weight:
                    self._loss += np.float32(weight) * blob.data.sum()

    @silent_arithmetic
    def backward(self, start: int | None = None, end: int = 0, exchange: GradientExchange | None = None) -> None:
        """Run the layers' backward passes from index `start` (the last one) down to `end`, both included.

        The net tells the `exchange` from which offset on the flat gradients are final. Sums on streams are part of the
        pass, with `finish`, so that an engine may record them. After other sums the caller calls `finish`.
        """
        self.context.engine.make_current()
        whole = start in (None, len(self.nodes) - 1) and end == 0
        if self.on_demand is not None:
            self.on_demand.retire()
            hooks = self.hooks["before_backward"] or self.hooks["after_backward"]
            if not whole or hooks or self.program.inference:
                self.program = self.plain
        first = len(self.program.nodes) - 1 if whole or start is None else start
        clear = self.parameters.cleared()

        def work() -> None:
            for storage in clear:  # anew, if an engine tries to record the pass in vain and then runs it
                storage.clear()
            if exchange is not None:
                exchange.begin(self.parameters.to_sum)
            self._backward_nodes(first, end, exchange)
            if exchange is not None and exchange.on_streams:
                exchange.finish()

        if self.program is self.plain or not (exchange is None or exchange.on_streams):
            work()
        else:
            self._repeat(f"{'' if clear else 'adding '}{'lone ' if exchange is None else ''}backward", work)
            for storage in clear:
                storage.is_clear = False  # also if the engine has run a recorded pass
        if self.debug_info:
            self.parameters.debug()

    def _backward_nodes(self, first: int, last: int, exchange: GradientExchange | None) -> None:
        engine, nodes = self.context.engine, self.program.nodes
        if first == len(nodes) - 1:
            self.weigh_losses(anew=True)
        engine.scale_losses((blob.diff, weight) for blob, weight in self._losses)
        if first == len(nodes) - 1:
            self.arena.move(START)
            self.arena.clear_unwritten()
        for index in range(first, last - 1, -1):
            node = nodes[index]
            for hook in self.hooks["before_backward"]:
                hook(index)
            if index in self.arena.again:
                self.arena.move(index)
                for other in self.arena.again[index]:
                    nodes[other].forward_again()
            if node.needs_backward:
                node.backward()
                if self.debug_info:
                    self._debug_backward(node)
            for layer in node.layer.layers:
                for blob in layer.blobs:
                    blob.diff_storage.settle()
            for hook in self.hooks["after_backward"]:
                hook(index)
            if exchange is not None:
                exchange.ready(self.program.final_from[index])
        for blob in self._in_place:
            self._weighed.pop(blob, None)

    def _debug_forward(self, node: Node) -> None:
        for blob_id, blob in zip(node.top_ids, node.tops, strict=True):
            log.debug_top(node.name, self.blob_names[blob_id], self._mean_magnitude(blob.data))
        for index, blob in enumerate(node.layer.blobs):
            name = spec_of(node.layer, index).name or str(index)
            log.debug_param(node.name, name, self._mean_magnitude(blob.data, blob))

    def _debug_backward(self, node: Node) -> None:
        for blob_id, blob, needed in zip(node.bottom_ids, node.bottoms, node.bottom_need_backward, strict=True):
            if needed:
                log.debug_bottom_diff(node.name, self.blob_names[blob_id], self._mean_magnitude(blob.diff))
        for index, blob in enumerate(node.layer.blobs):
            if node.layer.param_propagate_down[index]:
                log.debug_param_diff(node.name, str(index), self._mean_magnitude(blob.diff, blob))

    def _mean_magnitude(self, values: Array, parameter: Blob | None = None) -> float:
        """The mean over all workers' parts of a split parameter."""
        context = self.context
        values = context.engine.as_float32(values)
        if parameter is not None and isinstance(parameter.placement, Shard):
            return context.workers.sum(float(abs(values).sum())) / math.prod(context.whole_shape(parameter))
        return float(abs(values).sum() / values.size) if values.size else 0.0

    def weigh_losses(self, anew: bool = False) -> None:
        """Write the weight of each loss into its gradient, for the coming backward pass.

        As in Caffe a script may write other gradients before it calls backward. So its nets write them where memory is
        new, and for in-place layers after backward, which has overwritten them.
        """
        for blob, weight in self._losses:
            state = blob.diff_storage, blob.shape, weight
            if self._weighed.get(blob) != state or (anew and self.fuses):
                blob.diff[...] = weight
                self._weighed[blob] = state

    @functools.cached_property
    def _losses(self) -> list[tuple[Blob, float]]:
        """All blobs with a loss, and what their gradients are."""
        return [
            (blob, weight)
            for node in self.nodes
            for blob, weight in zip(node.tops, node.layer.loss_weights, strict=False)
            if weight
        ]

    @functools.cached_property
    def _in_place(self) -> set[Blob]:
        return {blob for node in self.nodes for blob in node.tops if blob in node.bottoms}

    def _repeat(self, what: str, work: Callable[[], None]) -> None:
        """Do the work of a whole pass, which an engine may record while the seed, shapes and memory stay."""
        engine = self.context.engine
        if not engine.asynchronous or any(node.layer.traits.needs_host for node in self.nodes):
            work()
            return
        engine.repeat(self, f"{what} pass", (self.context.seed, self.arena.version, *self.program.versions), work)

    def _recomputed(self) -> Iterator[Node]:
        """Yields the nodes of the graph, each as soon as its blobs have again the values of the last forward pass."""
        self.program = self.plain
        if self.fuses:
            self.arena.follow(self.plain)
            self.arena.move(START)
        for node in self.nodes:
            overwritten = any(blob.data_storage in self.arena.storages for blob in node.tops)
            if overwritten and node.is_repeatable:
                node.reshape()
                node.forward_again()
            yield node

    @silent_arithmetic
    def explain(self) -> None:
        """After an asynchronous engine has computed a NaN: repeat the pass, and raise a layer's error."""
        context = self.context
        if not context.engine.asynchronous:
            return
        with context.temporarily(explains=True, workers=context.workers.single):
            for node in self._recomputed():
                if node.is_repeatable and node.tops:
                    node.forward_again()

    @silent_arithmetic
    def first_bad_blob(self) -> str | None:
        """The first parameter or blob of the last forward pass that is not finite, in words, or None."""
        engine = self.context.engine
        with self.context.temporarily(workers=self.context.workers.single):  # each worker searches by itself
            for node in self._recomputed():
                for index, blob in enumerate(node.layer.blobs):
                    if not engine.is_finite(blob.data):
                        return f'parameter {index} of layer "{node.name}"'
                for index, blob in zip(node.top_ids, node.tops, strict=True):
                    if not engine.is_finite(engine.as_float32(blob.data)):
                        return f'blob "{self.blob_names[index]}" (top of layer "{node.name}")'
        return None

    def reshape(self) -> None:
        """Reshape all layers, after an input blob was reshaped."""
        for node in self.nodes:
            node.reshape()

    def complete(self) -> None:
        """Compute the blobs that the last forward pass has not materialised; see `fcaffe.net.script.on_demand`."""
        if self.on_demand is not None:
            self.on_demand.complete()

    def close(self) -> None:
        """Stop the layers' threads and close their files."""
        for node in self.nodes:
            node.layer.close()

    def memory(self) -> Memory:
        """What a pass takes with the present shapes. Nothing need have run yet."""
        program = self.fused if self.fuses else self.plain
        program.trace()
        return memory_of(program, self.arena.choose(program) if self.fuses else {}, in_arena=self.fuses)
