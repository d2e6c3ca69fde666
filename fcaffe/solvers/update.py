"""Update: applies the update rule to all parameters once their gradients are summed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.parameters import Parameter
from fcaffe.solvers import trust_ratio
from fcaffe.solvers.run import Run


class Update:
    """Clips, normalises and regularises gradients, and applies the run's rule to them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._table: Any = None  # of all parameters, for an engine that updates them by one kernel
        self._table_of: Any = None  # the settings for which the table was prepared

    @silent_arithmetic
    def apply(self) -> None:
        """Update every parameter, at the run's `rate`, by the gradients in `diff`."""
        run, param, engine = self.run, self.run.param, self.run.engine
        run.exchange.finish()
        self._clip()
        if engine.updates_at_once and run.rule.all_at_once and not trust_ratio.is_wanted(param):
            self._apply_at_once()
            return
        owned = list(run.net.parameters.with_slices())
        with self._brought_in(owned):
            self._lower(owned)

    def _lower(self, owned: list[tuple[Parameter, slice]]) -> None:
        run, param, engine = self.run, self.run.param, self.run.engine
        correction = run.rule.correction(run.iteration)
        if run.passes > 1:
            run.diff *= np.float32(1 / run.passes)
        blocks = []
        for parameter, own in owned:
            parameter.blob.data_storage.change()
            decay = np.float32(param.weight_decay) * np.float32(parameter.decay_mult)
            over_workers = run.workers.sum if parameter.is_split else float
            rate = trust_ratio.local_rate(param, engine.xp, run.data[own], run.diff[own], run.rate, over_workers)
            rate = float(np.float32(rate) * np.float32(parameter.lr_mult)) * correction
            blocks += [(block, float(decay), rate) for block in trust_ratio.blocks_of(own)]

        def update(block: slice, decay: float, rate: float) -> None:
            histories = [history[block] for history in run.history]
            run.rule.decay_and_update(run.data[block], run.diff[block], histories, rate, decay)

        engine.for_each(update, blocks)

    def _apply_at_once(self) -> None:
        """Update all parameters by one operator of an engine on a GPU."""
        from fcaffe.engines.cuda.update import Part, Settings

        run, param = self.run, self.run.param
        engine: Any = run.engine
        owned = list(run.net.parameters.with_slices())
        weight_decay = np.float32(param.weight_decay)
        parts = [Part(own, float(weight_decay * np.float32(p.decay_mult)), p.lr_mult) for p, own in owned]
        settings = param.regularization_type, tuple((part.decay, part.lr_mult) for part in parts)
        if settings != self._table_of:
            self._table_of, self._table = settings, engine.prepare_update(parts)
        engine.set_step(float(np.float32(run.rate)) * run.rule.correction(run.iteration), 1 / run.passes)
        numbers = Settings(param.momentum, param.momentum2, param.delta, param.rms_decay)

        def update() -> None:
            l1 = param.regularization_type == "L1"
            engine.update_all(param.type, self._table, run.data, run.diff, run.history, numbers, l1)

        for parameter, _ in owned:
            parameter.blob.data_storage.change()
        with self._brought_in(owned):
            engine.repeat(self, "update", (settings, numbers), update)  # whatever a script may change from step to step

    @contextlib.contextmanager
    def _brought_in(self, parameters: Iterable[tuple[Parameter, slice]]) -> Iterator[None]:
        """Its body also updates parameters outside the flat buffer, which a script shares with another net.

        Their values are copied into the flat buffer and back. Afterwards the buffer has its own values again.
        """
        away = [(one, own) for one, own in parameters if one.blob.data_storage is not one.flat_storage]
        data = self.run.data
        before = [data[own].copy() for _, own in away]
        for parameter, own in away:
            parameter.flat_storage.logical(data[own], parameter.blob.shape)[...] = parameter.blob.data
        yield
        for (parameter, own), values in zip(away, before, strict=True):
            parameter.blob.data[...] = parameter.flat_storage.logical(data[own], parameter.blob.shape)
            data[own] = values

    def _clip(self) -> None:
        """Scale all gradients so that the L2 norm of all of them is at most clip_gradients.

        All workers have the same gradients, and compute the same norm bit for bit.
        """
        run, limit = self.run, self.run.param.clip_gradients
        if limit < 0 or run.exchange.applies_momentum:
            return
        exchanged, of = run.net.parameters.exchanged, (run.engine.xp, run.engine.for_each)
        squares = trust_ratio.squares(run.diff[:exchanged], *of)
        if exchanged < run.diff.size:
            squares += run.workers.sum(trust_ratio.squares(run.diff[exchanged:], *of))
        norm = float(np.float32(squares**0.5)) / run.engine.gradient_scale()
        if norm > limit and np.isfinite(norm):
            log.clipping(norm, limit)
            run.diff *= np.float32(limit / norm)
