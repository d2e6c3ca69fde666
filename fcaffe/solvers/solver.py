"""Solver: the training loop, as Caffe runs it."""

from __future__ import annotations

import time
from typing import Any

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.errors import SnapshotError
from fcaffe.solvers.batches import Batches, NanPolicy
from fcaffe.solvers.control import Action, agree
from fcaffe.solvers.learning_rate import learning_rate, next_step
from fcaffe.solvers.memory_need import memory_errors
from fcaffe.solvers.run import Options, Run
from fcaffe.solvers.snapshot.files import temporary_prefix
from fcaffe.solvers.update import Update
from fcaffe.timeline import TEST, UPDATE

# Modules for shards, snapshots and tests are imported where they are used: many trainings do without, and start sooner.


class Solver(Run):
    """Fits the training net of a run, measures it by the test nets, and writes snapshots.

    Args:
        noise: See Context.
        options: Those of `Options`, by name; None stands for the default.
    """

    def __init__(self, param: Any, engine: Engine, noise: str = "caffe", **options: Any) -> None:
        from fcaffe.solvers.evaluation import check_evaluation

        given = {name: value for name, value in options.items() if value is not None}
        super().__init__(param, engine, Options(noise=noise, **given))
        check_evaluation(param, self.test_nets)
        self.nan_policy = NanPolicy(self, self.options.on_nan)
        self.update = Update(self)
        self.batches = self._batches()
        if self.options.keep_best or self.options.patience:
            from fcaffe.solvers.best import Best

            self.best = Best(self, self.options.keep_best, self.options.patience)
            self.observers.append(self.best)
        self._before_test: Any = None  # the states before the test that is going on
        log.solver_done()

    def _batches(self) -> Batches:
        if not self.shards:
            return Batches(self, self.nan_policy)
        from fcaffe.solvers.sharded_batches import ShardedBatches

        return ShardedBatches(self, self.nan_policy, self.shards)

    def solve(self, resume: str | None = None) -> None:
        """Train up to max_iter, then snapshot, display and test once more, as the solver's parameters ask."""
        param, last = self.param, self.param.max_iter
        if not param.HasField("max_iter"):
            log.warning("max_iter is missing and counts as 0, so nothing is trained; give it, such as 10000")
        log.solving(self.net.name, param.lr_policy)
        if resume:
            log.restoring(resume)
            self.restore(resume)
        if self.iteration > last:
            log.warning(f"Nothing to train: this is iteration {self.iteration}, and max_iter is {last}")
        action = self.step(last - self.iteration)
        self.nan_policy.check_weights(due=True)
        if (param.snapshot_after_train or action is Action.TERMINATE) and not self._is_due(param.snapshot):
            self.snapshot()
        if action is not Action.NONE:
            state = next((one.path for one in self.identity.own() if one.iteration == self.iteration), "")
            how = f"; --snapshot {state} goes on from there" if state else ""
            log.info(f"Stopped at iteration {self.iteration} of {last}{how}")
            log.stopped_early()
            return
        if self._is_due(param.display):
            self.smoothed.add(self.batches.forward())
            log.final_loss(self.iteration, float(self.smoothed.mean))
        if self._is_due(param.test_interval):
            self.test_all()
        log.optimization_done()

    def step(self, iterations: int) -> Action:
        """Take this many iterations: test when due, forward, backward, update, snapshot when due.

        Returns the action that has stopped it ahead of time, or Action.NONE.
        """
        self.engine.make_current()
        param, last = self.param, self.iteration + iterations
        self.smoothed.begin()
        shown, clock = self.iteration, time.perf_counter()
        while self.iteration < last:
            self.net.parameters.clear_diffs()
            test_is_due = self._is_due(param.test_interval) and (self.iteration > 0 or param.test_initialization)
            if test_is_due and (action := self.test_all()) is not Action.NONE:
                return action
            for observer in self.observers:
                observer.iteration_begins()
            display = self._is_due(param.display)
            self.net.debug_info = display and param.debug_info
            with memory_errors(self.net, self.rule.histories, self.engine.xp):
                self.smoothed.add(self.batches.forward_backward())
            if display:
                now = time.perf_counter()
                rate = (self.iteration - shown) / (now - clock)
                log.iteration(self.iteration, rate, now - clock, param.display, float(self.smoothed.mean))
                shown, clock = self.iteration, now
                self.batches.log_outputs()
            for observer in self.observers:
                observer.gradients_ready()
            self.apply_update()
            self.iteration += 1

            action = self.batches.agreed_action()
            snapshot_due = self._is_due(param.snapshot) or action in (Action.SNAPSHOT, Action.SAVE)
            for observer in self.observers:
                observer.iteration_ends(float(self.smoothed.mean), self.rate)
            self.nan_policy.check_weights(due=snapshot_due)
            if action is Action.SAVE and not self._is_due(param.snapshot):
                self.save_temporarily()
            elif snapshot_due:
                self.snapshot()
            if action in (Action.STOP, Action.TERMINATE):
                return action
        return Action.NONE

    def apply_update(self) -> None:
        """Update all parameters at this iteration's rate, from the gradients as they stand; the iteration stays."""
        self.engine.make_current()
        self.current_step = next_step(self.param, self.iteration, self.current_step)
        self.rate = learning_rate(self.param, self.iteration, self.current_step)
        if self._is_due(self.param.display):
            log.learning_rate(self.iteration, self.rate)
        with self.timeline.span(UPDATE):
            self.update.apply()

    def test_all(self) -> Action:
        """Test with all test nets. Returns the action that ended the tests ahead of time, or Action.NONE."""
        from fcaffe.solvers.evaluation import mean_statistics, test
        from fcaffe.solvers.snapshot.carried import states_of

        stopped = Action.NONE

        def asked_to_stop() -> bool:
            nonlocal stopped
            action = agree(self.requested_action(), self.workers)
            if action is Action.SNAPSHOT:
                self.snapshot()
            elif action not in (Action.NONE, Action.SAVE):
                stopped = action
            return stopped is not Action.NONE

        self._before_test = states_of(self)
        memory = memory_errors(self.net, self.rule.histories, self.engine.xp)
        with memory, self.timeline.span(TEST), mean_statistics(self):
            for index in range(len(self.test_nets)):
                if stopped is Action.NONE:
                    test(self, index, asked_to_stop)
            if self.best is not None and stopped is Action.NONE and self.best.judge():
                stopped = Action.STOP
        if stopped is Action.NONE:
            self._before_test = None
        return stopped

    def snapshot(self, prefix: str = "") -> str:
        """Write model and state; see `save`."""
        from fcaffe.solvers.snapshot.saving import save

        return save(self, self._before_test, prefix)

    def save_temporarily(self) -> None:
        """Write a temporary snapshot, and remove all of this run's but the last two.

        If it cannot be written, as on a full disk, a warning says so, and the training goes on.
        """
        try:
            self.snapshot(temporary_prefix(self.param.snapshot_prefix))
        except SnapshotError as problem:
            log.warning(f"There is no temporary snapshot of iteration {self.iteration}: {problem}")
        if self.workers.rank == 0:
            self.identity.remove_temporary(but=2)

    def restore(self, path: str) -> None:
        """Go on from a solver state. Raises SnapshotError, and changes nothing, if it is damaged or does not fit."""
        from fcaffe.solvers.snapshot.saving import restore

        restore(self, path)
        self._before_test = None

    def _is_due(self, every: int) -> bool:
        return bool(every) and self.iteration % every == 0
