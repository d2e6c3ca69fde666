"""Replay: the forward pass of a program for inference as a list of calls that needs no Python per layer.

Between two layers of a small net Python takes as long as a layer's work. As long as weights, shapes and memory stay the
same, so do the engine's calls. So the second pass records each node, whose calls are replayed from then on, except
layers that bring data in, or whose work the engine does not do alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from fcaffe.engines import Engine
from fcaffe.errors import LayerError
from fcaffe.net.blob import Array, Blob, Storage
from fcaffe.net.derived import are_exposed, versions_of
from fcaffe.net.node import Node

Run = Callable[[Node], float]  # runs a node and returns its weighted loss
RECORDED_PASS = 2  # of the passes with the same weights, shapes and memory


class Replay:
    """The forward pass of these nodes. It does not record nodes behind one that may change shapes amid a pass."""

    def __init__(self, nodes: Sequence[Node], engine: Engine) -> None:
        self._engine = engine
        self._sources = list(itertools.takewhile(lambda node: not node.bottoms, nodes))
        self._nodes = list(nodes[len(self._sources) :])
        steady = _steady(self._nodes)
        self._recordable = set(steady)
        self._blobs = [blob for node in steady for blob in node.blobs]
        self._parameters = [blob for node in steady for layer in node.layer.layers for blob in layer.blobs]
        self._changes = -1, -1
        self._versions: list[Any] = []
        self._memory: list[tuple[Storage, Array]] = []
        self._passes = 0  # with these weights, shapes and memory
        self._steps: list[Any] = []  # a node, or what `EngineBase.recorded` returns

    def forward(self, run: Run) -> float:
        """Run a pass, in which `run` runs the nodes that are not replayed; returns the weighted sum of the losses."""
        loss = 0.0
        for node in self._sources:
            loss += run(node)
        if not self._holds():
            self._memory, self._steps, self._passes = [], [], 0
        self._passes += 1
        if self._passes >= RECORDED_PASS and not self._steps and not are_exposed(self._parameters):
            return loss + self._record(run)
        for step in self._steps or self._nodes:
            if isinstance(step, Node):
                changes = step.layer.context.changes
                loss += run(step)
                if step.layer.context.changes != changes:  # it draws or changes a state, which no recording would do
                    self._recordable.discard(step)
            else:
                step()
        return loss

    def _holds(self) -> bool:
        """Whether weights, shapes and memory are those of the last pass."""
        if self._changes != (Blob.changes, Storage.changes):
            self._changes = Blob.changes, Storage.changes
            before = self._versions
            self._versions = [*[blob.version for blob in self._blobs], *versions_of(self._parameters)]
            if self._versions != before:
                return False
        return all([storage.buffer is buffer for storage, buffer in self._memory])

    def _record(self, run: Run) -> float:
        loss, steps = 0.0, list[Any]()
        for node in self._nodes:
            recording = self._recording(node) if node in self._recordable else None
            if recording is None:
                loss += run(node)
                steps.append(node)
            elif steps and not isinstance(steps[-1], Node):
                steps[-1].join(recording)
            else:
                steps.append(recording)
        self._steps = steps
        storages = {blob.data_storage for blob in self._blobs if blob.data_storage.buffer is not None}
        self._memory = [(storage, storage.buffer) for storage in storages]
        return loss

    def _recording(self, node: Node) -> Any:
        """Run this node and return its replay. None if code other than the engine's did a part of the work: the node
        must run again, and its bottoms are unchanged. The tops are read-only for NumPy, so it raises an error."""
        node.reshape()
        buffers = [blob.data_storage.buffer for blob in node.bottoms if blob in node.tops]
        before = [(buffer, buffer.copy()) for buffer in buffers]
        parameters = [blob for layer in node.layer.layers for blob in layer.blobs]
        arrays = [blob.data for blob in (*node.blobs, *parameters)]
        protected = [(blob.data_storage, blob.data_storage.buffer) for blob in node.tops]
        for storage, buffer in protected:
            view = buffer.view()
            view.flags.writeable = False
            storage.replace(view)
        recording = None
        try:
            recording = self._engine.recorded(node.forward, arrays)
        except (ValueError, LayerError):  # a write to a read-only array; other errors come again
            pass
        finally:
            for storage, buffer in protected:
                storage.replace(buffer)
        if recording is None:
            for buffer, values in before:
                buffer[...] = values
        return recording


def _steady(nodes: Sequence[Node]) -> list[Node]:
    """The nodes that may be recorded: forward does nothing but write the tops, and no node that may change shapes amid
    a pass comes before them."""
    found: list[Node] = []
    unsteady: set[Blob] = set()
    for node in nodes:
        if not (node.bottoms and node.layer.traits.reshapes_by_shape and unsteady.isdisjoint(node.bottoms)):
            unsteady.update(node.tops)
        elif node.is_repeatable and not any(node.layer.loss_weights):
            found.append(node)
    return found
