"""SGD's update by oneDNN's primitives, in four passes over memory instead of seven."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_int
from typing import Any

import numpy as np

from fcaffe.engines.memory import address, aligned_zeros
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.library import Library, post_operand
from fcaffe.engines.onednn.operation import SMALL, Operations
from fcaffe.engines.onednn.primitives import Layout, Primitive
from fcaffe.engines.onednn.threads import is_small
from fcaffe.engines.update import PlainUpdate

Array = Any


class Update(Operations, PlainUpdate):
    sgd_takes_all_cores = True
    update_block = 1 << 19  # shared by the cores, each of which goes over its part
    _updates: dict[tuple[int, bool], SgdUpdate]

    def sgd_update(self, w: Array, g: Array, h: Array, rate: float, momentum: float, decay: float = 0.0) -> None:
        if w.size < SMALL:
            super().sgd_update(w, g, h, rate, momentum, decay)
            return
        key = w.size, bool(decay)
        with self.library.lock:  # the numbers and the primitives' arguments are the update's own
            update = self._updates.get(key)
            if update is None:
                with self.library.threads.one(is_small((w, g, h))):
                    update = self._updates[key] = SgdUpdate(self.library, *key)
            update(address(w), address(g), address(h), decay, rate, momentum)


class SgdUpdate:
    """The update of `size` values. Products and sums round as in the plain operator, so the bits are the same."""

    def __init__(self, library: Library, size: int, decays: bool) -> None:
        flat, number = Layout(library, (size,), dnnl.F32, (1,)), Layout(library, (1,), dnnl.F32, (1,))

        def binary(kind: int, second: Layout, *steps: tuple[int, Layout]) -> Primitive:
            attributes = library.chain(steps) if steps else library.attributes()
            description = library.describe("binary", library.engine, c_int(kind), flat, second, flat, attributes)
            operands: Mapping[int, Layout] = {post_operand(index): layout for index, (_, layout) in enumerate(steps)}
            layouts = {dnnl.SRC: flat, dnnl.SRC_1: second, dnnl.DST: flat, **operands}
            return description.compile({kind: layout.handle for kind, layout in layouts.items()})

        self._decay = binary(dnnl.MULTIPLY, number, (dnnl.ADD, flat), (dnnl.MULTIPLY, number)) if decays else None
        self._scale = binary(dnnl.MULTIPLY, number)
        self._gather = binary(dnnl.MULTIPLY, number, (dnnl.ADD, flat))
        self._lower = binary(dnnl.SUBTRACT, flat)
        self._numbers = aligned_zeros(np, 4)
        first, step = address(self._numbers), self._numbers.itemsize
        self._addresses = [first + step * index for index in range(4)]

    def __call__(self, w: int, g: int, h: int, *numbers: float) -> None:
        """Update the weights, gradients and history at these addresses; `numbers` are decay, rate and momentum."""
        self._numbers[:] = *numbers, 1
        decay, rate, momentum, one = self._addresses
        if self._decay is None:
            self._scale(g, rate, g)  # g = rate * g
        else:
            self._decay(w, decay, g, g, rate)  # g = rate * (g + decay * w)
        self._gather(h, momentum, h, g)  # h = momentum * h + g
        self._lower(w, h, w)
        self._scale(h, one, g)  # g = h
