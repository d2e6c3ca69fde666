"""Weight cache: arrays that an engine has derived from weights, valid until the weights change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any, TypeVar

Derived = TypeVar("Derived")


class WeightCache:
    """Reordered or folded weights, by the addresses of the weights and the kind of derivation.

    `changing` are addresses of weights that may change between two passes and are not cached. `token` is
    replaced when an entry is dropped, so users of the entries' memory can detect that by identity.
    """

    def __init__(self) -> None:
        self.changing: Collection[int] = ()
        self.token = object()
        self._addresses: set[int] = set()  # of all weights from which something was derived
        self._entries: dict[tuple[tuple[int, ...], Hashable], Any] = {}

    def get(self, addresses: tuple[int, ...], kind: Hashable, derive: Callable[[], Derived]) -> Derived | None:
        """The result of `derive`, which runs once for each kind; None if one of the weights may change."""
        if self.changing and any(address in self.changing for address in addresses):
            return None
        found: Derived | None = self._entries.get((addresses, kind))
        if found is None:
            found = self._entries[addresses, kind] = derive()
            self._addresses.update(addresses)
        return found

    def drop(self, address: int) -> None:
        """Drop the entries that were derived from the weights at this address."""
        if address not in self._addresses:
            return
        stale = [key for key in self._entries if address in key[0]]
        for key in stale:
            del self._entries[key]
        if stale:
            self.token = object()

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
        self.token = object()
