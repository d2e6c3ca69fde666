"""The update of all parameters, once their gradients are there: what is the same whatever the rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.engines.update import Part, Settings
from fcaffe.net.net import silent_arithmetic
from fcaffe.solvers import trust_ratio
from fcaffe.solvers.run import Run


class Update:
    """Clips, normalises and regularises gradients, and applies the run's rule to them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._table: Any = None  # of all parameters, as an engine that takes them in one go wants it
        self._table_of: Any = None  # what the table was made of

    @silent_arithmetic
    def apply(self) -> None:
        """Lower every parameter at the run's `rate` by the gradients of its iteration's passes, which are in `diff`."""
        run, param, engine = self.run, self.run.param, self.run.engine
        self._clip()
        local_rates = trust_ratio.is_wanted(param)
        if engine.updates_at_once and run.rule.all_at_once and not local_rates:
            self._apply_at_once()
            return
        if run.passes > 1:
            run.diff *= np.float32(1 / run.passes)
        correction, blocks = run.rule.correction(run.iteration), []
        for parameter, own in zip(run.net.parameters.owned, run.net.parameters.slices(), strict=True):
            decay = np.float32(param.weight_decay) * np.float32(parameter.decay_mult)
            rate = trust_ratio.local_rate(param, engine.xp, run.data[own], run.diff[own], run.rate)
            rate = float(np.float32(rate) * np.float32(parameter.lr_mult)) * correction
            for start in range(own.start, own.stop, engine.update_block):
                blocks.append((slice(start, min(start + engine.update_block, own.stop)), float(decay), rate))

        def update(block: slice, decay: float, rate: float) -> None:
            histories = [history[block] for history in run.history]
            run.rule.decay_and_update(run.data[block], run.diff[block], histories, rate, decay)

        engine.for_each(update, blocks)
        engine.refresh_parameters()

    def _apply_at_once(self) -> None:
        """The same by an engine that takes all parameters in one go."""
        run, param, engine = self.run, self.run.param, self.run.engine
        owned = zip(run.net.parameters.owned, run.net.parameters.slices(), strict=True)
        weight_decay = np.float32(param.weight_decay)
        parts = [Part(own, float(weight_decay * np.float32(p.decay_mult)), p.lr_mult) for p, own in owned]
        made_of = param.regularization_type, tuple((part.decay, part.lr_mult) for part in parts)
        if made_of != self._table_of:
            self._table_of, self._table = made_of, engine.prepare_update(parts, param.regularization_type)
        engine.set_step(float(np.float32(run.rate)) * run.rule.correction(run.iteration), 1 / run.passes)
        numbers = Settings(param.momentum, param.momentum2, param.delta, param.rms_decay)

        def update() -> None:
            engine.update_all(param.type, self._table, run.data, run.diff, run.history, numbers)

        engine.repeat(self, "update", (made_of, numbers), update)  # whatever a script may change from step to step

    def _clip(self) -> None:
        """Scale all gradients down to the L2 norm clip_gradients, if they exceed it together. All workers have the same
        gradients and come to the same norm, bit for bit."""
        run, limit = self.run, self.run.param.clip_gradients
        if limit < 0 or run.exchange.takes_momentum:
            return
        norm = float(trust_ratio.norm(run.engine.xp, run.diff, run.engine.for_each)) / run.engine.gradient_scale()
        if norm > limit and np.isfinite(norm):
            log.clipping(norm, limit)
            run.diff *= np.float32(limit / norm)
