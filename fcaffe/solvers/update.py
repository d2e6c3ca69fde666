"""The update of all parameters, once their gradients are there: what is the same whatever the rule."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.engines.update import Part, Settings
from fcaffe.net import Net
from fcaffe.net.blob import Array
from fcaffe.net.net import silent_arithmetic
from fcaffe.solvers import trust_ratio
from fcaffe.solvers.batch_growth import BatchGrowth
from fcaffe.solvers.exchange import GradientExchange
from fcaffe.solvers.learning_rate import learning_rate, next_step


class Update:
    """Base of solvers. A rule says how many `histories` of the parameters' size it keeps, and overrides `update`.

    All parameters, gradients and histories are flat float32 buffers (`data`, `diff`, `history`); the nets' blobs are
    views of them.
    """

    histories: ClassVar[int]
    lends_momentum: ClassVar[bool] = False  # an exchange may apply its momentum instead

    param: Any
    engine: Engine
    net: Net
    exchange: GradientExchange
    iteration: int
    current_step: int
    rate: float  # of the last update
    data: Array
    diff: Array
    history: list[Array]

    growth: BatchGrowth | None = None  # see grow_batch
    _table: Any = None  # of all parameters, as an engine that takes them in one go wants it
    _known: Any = None  # what the table was made of

    @property
    def passes(self) -> int:
        """How many passes add up their gradients for the update of this iteration."""
        return self.growth.phase(self.iteration).passes if self.growth else self.param.iter_size

    @silent_arithmetic
    def apply_update(self) -> None:
        """Clip, normalise, regularise, and apply the update rule to every parameter at this iteration's rate."""
        param = self.param
        self.rate = self.learning_rate()
        if param.display and self.iteration % param.display == 0:
            log.learning_rate(self.iteration, self.rate)
        self._clip()
        if self.engine.updates_at_once and not self.exchange.takes_momentum and not trust_ratio.is_wanted(param):
            self._update_at_once()
            return
        if self.passes > 1:
            self.diff *= np.float32(1 / self.passes)
        blocks = []
        for parameter, place in zip(self.net.parameters.owned, self.net.parameters.slices(), strict=True):
            decay = np.float32(param.weight_decay) * np.float32(parameter.decay_mult)
            rate = trust_ratio.local_rate(param, self.engine.xp, self.data[place], self.diff[place], self.rate)
            rate = np.float32(rate) * np.float32(parameter.lr_mult)
            for start in range(place.start, place.stop, self.engine.update_block):
                block = slice(start, min(start + self.engine.update_block, place.stop))
                blocks.append((block, float(decay), float(rate)))
        self.engine.for_each(self.decay_and_update, blocks)
        self.engine.refresh_parameters()

    def _update_at_once(self) -> None:
        """The same by an engine that takes all parameters in one go."""
        param, engine = self.param, self.engine
        owned = zip(self.net.parameters.owned, self.net.parameters.slices(), strict=True)
        weight_decay = np.float32(param.weight_decay)
        parts = [Part(place, float(weight_decay * np.float32(p.decay_mult)), p.lr_mult) for p, place in owned]
        known = param.regularization_type, tuple((part.decay, part.lr_mult) for part in parts)
        if known != self._known:
            self._known, self._table = known, engine.prepare_update(parts, param.regularization_type)
        engine.set_step(self.step_rate(), 1 / self.passes)
        numbers = Settings(param.momentum, param.momentum2, param.delta, param.rms_decay)

        def update() -> None:
            engine.update_all(param.type, self._table, self.data, self.diff, self.history, numbers)

        engine.repeat(self, "update", (known, numbers), update)  # whatever a script may change from step to step

    def step_rate(self) -> float:
        """What the rule multiplies its steps by: the rate, unless it corrects that."""
        return self.rate

    def decay_and_update(self, place: slice, decay: float, rate: float) -> None:
        """Regularise a part of the flat buffers, all of one parameter, and apply the rule to it."""
        if decay:
            self.engine.add_decay(self.data[place], self.diff[place], decay, self.param.regularization_type)
        self.update(place, rate)

    def update(self, place: slice, rate: float) -> None:
        """Apply the rule to a part of the flat buffers, all of one parameter."""
        raise NotImplementedError

    def learning_rate(self) -> float:
        """This iteration's rate; a multistep policy moves on to its next step first."""
        if self.growth:
            self.current_step = self.growth.index(self.iteration)
            return self.growth.learning_rate(self.param, self.iteration)
        before, self.current_step = self.current_step, next_step(self.param, self.iteration, self.current_step)
        if self.param.lr_policy == "multistep" and self.current_step != before:
            log.multistep(self.iteration, self.current_step)
        return learning_rate(self.param, self.iteration, self.current_step)

    def _clip(self) -> None:
        """Scale all gradients down to the L2 norm clip_gradients, if they exceed it together. All workers have the same
        gradients and come to the same norm, bit for bit."""
        limit = self.param.clip_gradients
        if limit < 0 or self.exchange.takes_momentum:
            return
        norm = float(trust_ratio.norm(self.engine.xp, self.diff, self.engine.for_each)) / self.engine.gradient_scale()
        if norm > limit and np.isfinite(norm):
            log.clipping(norm, limit)
            self.diff *= np.float32(limit / norm)
