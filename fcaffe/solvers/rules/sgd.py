"""Stochastic gradient descent, with Polyak's or Nesterov's momentum."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.net.blob import Array
from fcaffe.solvers.rules.rule import Rule, register_rule


@register_rule("SGD")
class SGD(Rule):
    """h = momentum * h + rate * g; w -= h.

    The rate is folded into the history, as in Caffe: changing it in mid-run leaves the momentum gathered so far alone.
    """

    all_at_once = True

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        h = histories[0]
        h *= self.xp.float32(self.param.momentum)
        g *= self.xp.float32(rate)
        h += g
        g[...] = h
        w -= g

    def with_momentum_applied(self) -> Rule:
        return DecayWithMomentum(self.param, self.engine)


class DecayWithMomentum(SGD):
    """SGD for gradients that come with their momentum: these are applied as they are, the decay gets its own."""

    all_at_once = False

    def decay_and_update(self, w: Array, g: Array, histories: Sequence[Array], rate: float, decay: float) -> None:
        gradients = g.copy()
        g[...] = 0
        Rule.decay_and_update(self, w, g, histories, rate, decay)
        gradients *= self.xp.float32(rate)
        w -= gradients
        g += gradients


@register_rule("Nesterov")
class Nesterov(Rule):
    """h' = momentum * h + rate * g; w -= (1 + momentum) * h' - momentum * h."""

    all_at_once = True

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        h, momentum = histories[0], self.xp.float32(self.param.momentum)
        looked_back = momentum * h
        h *= momentum
        g *= self.xp.float32(rate)
        h += g
        self.xp.multiply(h, self.xp.float32(1) + momentum, out=g)
        g -= looked_back
        w -= g
