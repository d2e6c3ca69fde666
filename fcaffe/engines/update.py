"""The solver's pass over parameters: plain array code, slices of the flat buffers at a time."""

from __future__ import annotations

from typing import Any

Array = Any


class PlainUpdate:
    """Arrays are flat and of one length: weights w, gradients g, histories h."""

    xp: Any

    def add_decay(self, w: Array, g: Array, decay: float, kind: str) -> None:
        """g += decay * w (L2) or decay * sign(w) (L1)."""
        g += self.xp.float32(decay) * (w if kind == "L2" else self.xp.sign(w))

    def sgd_update(self, w: Array, g: Array, h: Array, rate: float, momentum: float) -> None:
        """h = momentum * h + rate * g; g = h; w -= g. The rate is folded into the history, as in Caffe."""
        h *= self.xp.float32(momentum)
        g *= self.xp.float32(rate)
        h += g
        g[...] = h
        w -= h
