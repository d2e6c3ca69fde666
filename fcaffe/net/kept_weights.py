"""Kept weights: what an engine makes of weights, such as another order of them, serves for more than one forward pass.

That is for scripts, which run a net forward many times with the weights as they are. Whoever changes weights says so.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fcaffe.engines import Engine
from fcaffe.engines.engine import Kept
from fcaffe.net.storage import Storage


@dataclass
class _Kept:
    """What the engine has made of a net's weights for blobs of these shapes, by addresses and operation."""

    shapes: list[tuple[int, ...]]
    made: Kept = field(default_factory=dict)
    counted: int = 0  # how many of them `KeptWeights` knows the addresses of


class KeptWeights:
    """What an engine has made of the weights of each net that runs forward on it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._of: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()
        self._addresses: set[int] = set()  # of all weights of which something has been kept since they last changed
        self._passes = 0  # under way, in which more is made
        self._changing = False

    @contextlib.contextmanager
    def same(self, net: Any, exposed: Callable[[], list[Storage]]) -> Iterator[None]:
        """Its body is a forward pass of this net. What is made of the weights is kept for the next pass, but for those
        that are `exposed`."""
        if self._changing:
            yield
            return
        kept = self._of.get(net)
        if kept is None or kept.shapes != _shapes(net):  # once more with these shapes, then it is worth keeping
            with self._engine.other_weights():
                yield
            self._of[net] = _Kept(_shapes(net))
            return
        written = set(exposed())
        if written:
            written &= {blob._data for layer in net.layers for blob in layer.blobs}
        self._passes += 1
        try:
            with self._engine.fixed_weights(kept.made, {storage.address for storage in written}):
                yield
        finally:
            self._passes -= 1
            if kept.counted != len(kept.made):
                kept.counted = len(kept.made)
                self._addresses.update(address for addresses, _ in kept.made for address in addresses)

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Its body changes weights of some net, or where they lie; user code may do so amid the forward pass of
        another net, whose body of `same` it then is in."""
        for kept in self._of.values():
            kept.made.clear()
        self._of.clear()
        self._addresses.clear()
        before, self._changing = self._changing, True
        try:
            with self._engine.other_weights():
                yield
        finally:
            self._changing = before

    def forget(self, address: int) -> None:
        """What is there may be written from now on."""
        if address not in self._addresses and not self._passes:
            return
        for kept in self._of.values():
            if stale := [key for key in kept.made if address in key[0]]:
                for key in stale:
                    del kept.made[key]
                kept.made = dict(kept.made)  # another object, so that nobody plays what was recorded with these
                kept.counted = -1


def _shapes(net: Any) -> list[tuple[int, ...]]:
    return [blob.shape for blob in net.blobs]
