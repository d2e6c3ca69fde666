"""Net: a graph of layers that runs, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from fcaffe import log
from fcaffe.engines.engine import Pending
from fcaffe.net.blob import Array
from fcaffe.net.context import Context
from fcaffe.net.debug_info import debug_backward, debug_forward
from fcaffe.net.fusion import Fusions
from fcaffe.net.graph import Graph, Node
from fcaffe.net.memory_plan import START, Memory, MemoryPlan
from fcaffe.net.precision import choose_types

Function = TypeVar("Function", bound=Callable[..., Any])


def silent_arithmetic(function: Function) -> Function:
    """A net that blows up does so in its log, not in NumPy's warnings: infinities and NaNs are ordinary values, as in C.

    What the caller has set counts again afterwards: each call has an errstate of its own, since one of NumPy 1 that is
    entered twice, as by a net that a Python layer runs, forgets what was set before.
    """

    @functools.wraps(function)
    def silent(*arguments: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments, **named)

    return cast(Function, silent)


class Handover(Protocol):
    """Who takes gradients over while a backward pass goes on."""

    def begin(self) -> None: ...

    def ready(self, layer: int) -> None:
        """The layer of this index is through, and so are all behind it."""

    def finish(self) -> None: ...


class Net(Graph):
    """A graph that runs: with its blobs in memory, operators fused, and passes recorded where the engine can do that.

    Arguments and errors are those of Graph.
    """

    def __init__(self, param: Any, context: Context) -> None:
        super().__init__(param, context)
        self.debug_info: bool = param.debug_info
        self.fusions = Fusions(self.nodes, context.inference)
        self._loss = context.engine.xp.zeros(1, np.float64)  # of a pass, where it stays on a device
        choose_types(self)
        self.memory_plan = MemoryPlan(self)
        self.parameters.share()
        log.net_done()

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
        whole = self.context.whole_passes and start == 0 and end is None and not self.debug_info
        self.fusions.activate(whole)
        if self.context.whole_passes:
            self.memory_plan.follow()
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
            debug_forward(self, node)
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
                node.backward()
                if self.debug_info:
                    debug_backward(self, node)
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
        signature = (self.context.seed, self.memory_plan.version, *(blob.version for blob in self.blobs))
        engine.repeat(self, f"{what} pass", signature, work)

    def reshape(self) -> None:
        """Let every layer take over the shapes of its bottoms, after an input blob was reshaped."""
        for node in self.nodes:
            node.reshape()

    def close(self) -> None:
        """Stop the layers' threads and close their files."""
        for node in self.nodes:
            node.layer.close()

    @property
    def memory(self) -> Memory:
        """What one pass takes."""
        return self.memory_plan.report()

    def explain(self) -> None:
        """Raise what a layer finds wrong with its bottoms, once an output of an asynchronous engine is no number."""
        for node in self.nodes:
            node.layer.explain(node.bottoms)

    @silent_arithmetic
    def first_bad_blob(self) -> str | None:
        """Which value of the forward pass was the first that is not finite, or None.

        Values that others have overwritten since, or that fused layers have left out, are computed again.
        """
        spread = [self.fusions.active and self.fusions.is_spread(node.index) for node in self.nodes]
        placed = [any(self.memory_plan.has_placed(blob) for blob in node.tops) for node in self.nodes]
        gone = [a or b for a, b in zip(spread, placed, strict=True)]
        self.fusions.activate(False)
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


def _finite(values: Array) -> bool:
    return bool(abs(values).sum() < float("inf")) or bool((abs(values) < float("inf")).all())
