"""A whole forward pass whose nodes have been recorded, as a few calls.

Node by node Python asks before each recording whether it still counts, and takes longer for that than a small layer for
its work. Here it asks once for all of them, and plays stretches of recordings as one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from fcaffe.engines.engine import Engine
from fcaffe.net.node import Node
from fcaffe.net.recorded_forward import RecordedForward
from fcaffe.net.storage import Array, Storage

SETTLED = 3  # passes with the same weights and shapes, in the second of which nodes are recorded


class RecordedPass:
    """The forward pass of these nodes of a program for inference, none of which may change shapes amid it: what has
    been recorded of those behind it would not count."""

    def __init__(self, nodes: Sequence[Node], engine: Engine) -> None:
        self._nodes, self._engine = nodes, engine
        self._suits = engine.records and not any(node.has_loss for node in nodes)
        self._fixed: object | None = None
        self._version = -1
        self._passes = 0  # since the weights or the shapes have changed
        self._steps: list[Callable[[], None]] = []
        self._memory: list[tuple[Storage, Array]] = []

    def play(self, version: int) -> bool:
        """Run the pass if it is recorded and all is as it was then, else do nothing; returns whether it has run.
        `version` is another one whenever a blob has changed its shape, or its place in the arena."""
        fixed = self._engine.fixed
        if fixed is None or not self._suits:
            return False
        if fixed is not self._fixed or version != self._version:
            self._fixed, self._version, self._passes, self._steps, self._memory = fixed, version, 0, [], []
        if not self._steps:
            self._passes += 1
            if self._passes == SETTLED and all(_recording(node) or node.is_steady for node in self._nodes):
                self._join()
            return False
        if not all([storage.buffer is buffer for storage, buffer in self._memory]):
            self._passes, self._steps, self._memory = 1, [], []
            return False
        for step in self._steps:
            step()
        return True

    def _join(self) -> None:
        recordings: list[RecordedForward] = []
        for is_played, some in itertools.groupby(self._nodes, _recording):
            if not is_played:
                self._steps += [node.forward for node in some]
                continue
            together = [node._recorded for node in some if node._recorded is not None]
            recordings += together
            self._steps.append(self._engine.joined([each.play for each in together if each.play is not None]))
        memory = {id(storage): (storage, buffer) for each in recordings for storage, buffer in each.memory}
        self._memory = list(memory.values())


def _recording(node: Node) -> Any:
    return node._recorded is not None and node._recorded.play is not None
