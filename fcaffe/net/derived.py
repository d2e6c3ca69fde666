"""Derived: the values that operators derive from the weights of a node, such as reordered or folded weights.

A value belongs to the node that uses it, and is valid while its sources have the versions (`Storage.change`) from which
it was derived. Nothing is derived while a script holds an array of a source, which it may write at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from fcaffe.net.blob import Array, Blob


class Derived:
    """Values by the operator that derives them. The node calls `begin` before each forward pass of its layer.

    A value is worth its memory in the second pass with the same weights, or `at_once` in nets for inference.
    """

    def __init__(self, sources: Sequence[Blob], at_once: bool) -> None:
        self._sources = sources
        self._at_once = at_once
        self._versions = [(-1, -1)]
        self._values: dict[Hashable, Any] = {}  # of the last pass; None has not been derived
        self._used: dict[Hashable, Any] = {}  # in this pass

    def begin(self) -> Derived:
        """A pass begins. Drops what the last one did not use, and everything if a source has changed."""
        versions = versions_of(self._sources)
        self._values = self._used if versions == self._versions else {}
        self._versions, self._used = versions, {}
        return self

    def get(self, operator: Hashable, derive: Callable[[], Any], source: Array | None) -> Any:
        """The result of `derive`, from the data of one of the weights, or, for None, of all. None: use the weights."""
        if source is not None:
            index = next((i for i, blob in enumerate(self._sources) if blob.data is source), -1)
            if index < 0:  # the layer has computed it, perhaps from its bottoms
                return None
            operator = operator, index
        if operator not in self._used:
            value = self._values.get(operator)
            if value is None and (self._at_once or operator in self._values) and not are_exposed(self._sources):
                value = derive()
            self._used[operator] = value
        return self._used[operator]


def versions_of(blobs: Sequence[Blob]) -> list[tuple[int, int]]:
    """Numbers that change with the shape, memory or values of parameters."""
    return [(blob.version, blob.data_storage.version) for blob in blobs]


def are_exposed(blobs: Sequence[Blob]) -> bool:
    return any([blob.data_storage.is_exposed for blob in blobs])
