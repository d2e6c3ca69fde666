"""Update: applies the update rule to all parameters once their gradients are summed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.parameters import Parameter
from fcaffe.solvers import trust_ratio
from fcaffe.solvers.run import Run
from fcaffe.timeline import UPDATE


class Update:
    """Clips, normalises and regularises gradients, and applies the run's rule to them.

    An update may end after the next pass begins. Parameters whose gradients are summed are updated at once, the others
    when a layer needs them. So sums continue while the first layers of the next forward pass compute.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._left: list[tuple[Parameter, slice]] = []  # parameters to be updated, in the order of the flat buffer
        self._rate, self._correction, self._passes = 0.0, 1.0, 1  # of the update
        self._table: Any = None  # of all parameters, for an engine that updates them by one kernel
        self._table_of: Any = None  # the settings for which the table was prepared

    @silent_arithmetic
    def begin(self) -> None:
        """Begin the update of every parameter, at the run's `rate`, by the gradients in `diff`. Their sums may still go
        on."""
        run, param, engine = self.run, self.run.param, self.run.engine
        at_once = engine.updates_at_once and run.rule.all_at_once and not trust_ratio.is_wanted(param)
        if at_once or param.clip_gradients >= 0:
            run.exchange.finish()
        self._clip()
        if at_once:
            self._apply_at_once()
            return
        self._rate, self._correction, self._passes = run.rate, run.rule.correction(run.iteration), run.passes
        owned = list(run.net.parameters.with_slices())
        self._left = [pair for pair in owned if not pair[0].is_split]
        self._lower([pair for pair in owned if pair[0].is_split])  # whose gradients are not exchanged
        self._apply_summed()

    def need(self, stop: float) -> None:
        """Update all parameters that begin before offset `stop`. Waits for the sums of their gradients."""
        if self._left and self._left[0][1].start < stop:
            self.run.exchange.finish(stop)
            with self.run.timeline.span(UPDATE):
                self._apply_summed()

    def finish(self) -> None:
        """Update all parameters. Raises the error of a sum that failed, whether or not its gradients are used."""
        self.need(math.inf)
        self.run.exchange.finish()

    @silent_arithmetic
    def _apply_summed(self) -> None:
        """Update the parameters whose gradients are summed by now."""
        run = self.run
        until = run.exchange.final_until
        number = sum(own.stop <= until for _, own in self._left)
        now, self._left = self._left[:number], self._left[number:]
        with self._brought_in(now):
            self._lower(now)

    def _lower(self, now: list[tuple[Parameter, slice]]) -> None:
        run, param, engine = self.run, self.run.param, self.run.engine
        if self._passes > 1 and now:
            run.diff[now[0][1].start : now[-1][1].stop] *= np.float32(1 / self._passes)
        blocks = []
        for parameter, own in now:
            parameter.blob.data_storage.change()
            decay = np.float32(param.weight_decay) * np.float32(parameter.decay_mult)
            over_workers = run.workers.sum if parameter.is_split else float
            rate = trust_ratio.local_rate(param, engine.xp, run.data[own], run.diff[own], self._rate, over_workers)
            rate = float(np.float32(rate) * np.float32(parameter.lr_mult)) * self._correction
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
