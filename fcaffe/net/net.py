"""Net: a graph of layers that runs, forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.net.apart import Apart
from fcaffe.net.arena import Arena, Memory, memory_of
from fcaffe.net.blob import Blob
from fcaffe.net.context import Context
from fcaffe.net.hooks import Hooks
from fcaffe.net.on_demand import OnDemand
from fcaffe.net.passes import Passes
from fcaffe.net.precision import choose_types
from fcaffe.net.program import Program
from fcaffe.net.rewrite import rewrite, unseen_fusions


class Net(Passes):
    """A graph that runs, as one of two programs.

    `plain` is the graph as it is, layer by layer. `fused` is what whole passes run where nobody looks at what lies
    between the layers (`Context.whole_passes`): rewritten (see `fcaffe.net.rewrite`), its memory in one arena, and
    recorded where the engine can do that. Arguments and errors are those of Graph.
    """

    def __init__(self, param: Any, context: Context) -> None:
        super().__init__(param, context)
        self.debug_info: bool = param.debug_info
        self.hooks = Hooks()  # of passes over the plain program
        self._loss = context.engine.xp.zeros(1, np.float64)  # of a pass, where it stays on a device
        self._losses_in_place = [node for node in self.nodes if node.has_loss and {*node.tops} & {*node.bottoms}]
        choose_types(self)
        self.plain = Program(self.nodes, self._outer(), self.parameters, context.inference)
        self.fused = self._fused_program() if context.whole_passes else self.plain
        self._unseen = unseen_fusions(self.nodes)  # by the index of their first member
        self._apart: Apart | None = None
        self.program = self.plain  # that of the last forward pass, which backward follows
        self.arena = Arena(context.recompute)
        on_demand = context.on_demand and context.engine.xp is np
        self.on_demand = OnDemand(self, self._outer(), self.arena) if on_demand else None
        if on_demand and not any(node.layer.type == "Python" for node in self.nodes):
            self._apart = Apart(self.nodes, self._outer(), self.parameters)
        self.parameters.share()
        log.net_done()

    def _fused_program(self) -> Program:
        inference = self.context.inference
        return Program(rewrite(self.nodes, inference), self._outer(), self.parameters, inference)

    def _outer(self) -> list[Blob]:
        """The blobs that come from outside or are read there, so that their values have to outlive the pass."""
        ends = {*self.input_ids, *self.output_ids}
        return [blob for i, blob in enumerate(self.blobs) if i in ends or self.blob_loss_weights[i]]

    @contextlib.contextmanager
    def whole_passes(self) -> Iterator[None]:
        """In its body the net runs whole passes only (see Context); what is between the layers is lost then. However
        the body ends, layers and memory are afterwards as they were before."""
        before = self.fused
        if not self.fuses:
            self.fused = self._fused_program()
        try:
            yield
        finally:
            if self.fused is not before:
                self.program = self.fused = before
                self.arena.release()

    def reshape(self) -> None:
        """Let every layer take over the shapes of its bottoms, after an input blob was reshaped."""
        for node in self.nodes:
            node.reshape()

    def complete(self) -> None:
        """Compute what the last forward pass has left out; see `fcaffe.net.on_demand`."""
        if self.on_demand is not None:
            self.on_demand.complete()

    def close(self) -> None:
        """Stop the layers' threads and close their files."""
        for node in self.nodes:
            node.layer.close()

    def memory(self, recompute: bool | None = None) -> Memory:
        """What one pass takes with the present shapes, with `recompute` or not (None: as it is run); nothing need have
        run yet."""
        recompute = self.arena.recompute if recompute is None else recompute
        self.fused.trace()
        if not self.fuses:
            return memory_of(self.fused, {}, in_arena=False)
        return memory_of(self.fused, self.arena.choose(self.fused) if recompute else {}, in_arena=True)
