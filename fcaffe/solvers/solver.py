"""Solver: the training loop, as Caffe runs it."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from fcaffe import log
from fcaffe.data.share import Share, Turns
from fcaffe.engines import Engine
from fcaffe.engines.memory import aligned_zeros
from fcaffe.errors import SnapshotError, SolverError
from fcaffe.net import Context, Net
from fcaffe.net.blob import Array, Blob
from fcaffe.net.memory_need import check_memory, memory_errors
from fcaffe.net.shards import Shards
from fcaffe.net.weights import load_weights, tell_untouched
from fcaffe.net.workers import Workers
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import snapshot, testing, trust_ratio
from fcaffe.solvers.actions import Action, agree
from fcaffe.solvers.carried import Point
from fcaffe.solvers.exchange import GradientExchange
from fcaffe.solvers.iteration import Iteration, known
from fcaffe.solvers.learning_rate import learning_rate
from fcaffe.solvers.nets import test_net_params, train_net_param
from fcaffe.solvers.sharded import ShardedBatches
from fcaffe.solvers.smoothing import SmoothedLoss
from fcaffe.solvers.update import Update
from fcaffe.timeline import BACKWARD, FORWARD, SNAPSHOT, TEST, UPDATE, Timeline

WEIGHTS_CHECKED = 100  # iterations between looks at the weights


class Solver(Update):
    """A training net, its test nets, and the loop that fits the one and measures it with the others.

    A subclass is an update rule: see Update. `noise` is the stream that Dropout draws from (see Context), `random`
    Caffe's generator; a `random_seed` in the solver's parameters starts it anew.

    Several `workers` each run one Solver in step: they split every batch, the `exchange` adds their gradients up, test
    batches are taken in turns, and worker 0 alone logs and writes snapshots. `sync_batch_norm`, `whole_passes` and
    `recompute` as in Context. With `shards`, a power of two, the weights have the same bits on any power of two of
    workers up to that; see ShardedBatches for what that takes.
    """

    def __init__(
        self,
        param: Any,
        engine: Engine,
        noise: str = "caffe",
        random: CaffeRandom | None = None,
        workers: Workers | None = None,
        exchange: GradientExchange | None = None,
        sync_batch_norm: bool = True,
        shards: int = 0,
        timeline: Timeline | None = None,
        whole_passes: bool = True,
        recompute: bool = False,
    ) -> None:
        workers = Workers() if workers is None else workers
        self.param = param
        self.engine = engine
        self.workers = workers
        self.exchange = GradientExchange() if exchange is None else exchange
        self.timeline = Timeline() if timeline is None else timeline
        self.iteration = 0
        self.current_step = 0
        self.requested_action: Callable[[], Action] = lambda: Action.NONE
        self.on_start: list[Callable[[], None]] = []
        self.on_gradients_ready: list[Callable[[], None]] = []
        self.on_test_batch: list[Callable[[], None]] = []
        self.on_iteration: list[Callable[[float, float], None]] = []  # called with the smoothed loss and the rate
        self.on_nan = "continue"  # 'stop', or 'snapshot': stop after writing the last good state
        self._stopped: Action = Action.NONE
        self._last_good: snapshot.Memory | None = None
        self._test_began: Point | None = None  # where the run stood before the test that is going on
        self.smoothed = SmoothedLoss(param.average_loss)
        self._goes_on = False  # whether the next loss belongs to those of the run whose state was restored
        self._running: deque[Iteration] = deque()

        log.initializing_solver(str(param))
        self.check()
        if workers.rank == 0:
            snapshot.check_writable(param)
        random = CaffeRandom(None) if random is None else random
        seed = int.from_bytes(os.urandom(4), "little")
        if param.random_seed >= 0:
            seed = param.random_seed
            random.set_state(CaffeRandom(seed).state())
        random.set_state(workers.broadcast_object(random.state()))
        seed = workers.broadcast_object(seed)
        parts = Shards(workers, shards) if shards else workers  # of a batch, as the training net sees them
        self.context = Context(
            engine,
            random,
            noise,
            seed,
            workers=parts,
            sync_batch_norm=sync_batch_norm,
            timeline=self.timeline,
            whole_passes=whole_passes,
            recompute=recompute and whole_passes,
            as_worker_0=workers.broadcast_object,
        )
        net_param, source = train_net_param(param)
        _check_same(workers, "the solver and its training net", param, net_param)
        log.creating_train_net(source)
        self.net = Net(net_param, self.context)
        if parts.size > 1 and self.context.share is None and not parts.per_worker:
            raise SolverError(f"the training net has no layer that reads a batch, {parts.splitting}")
        self._finetune(self.net)
        self.test_nets: list[Net] = []
        test_params = test_net_params(param)
        _check_same(workers, "the test nets", *(net_param for net_param, _ in test_params))
        for index, (net_param, source) in enumerate(test_params):
            log.creating_test_net(index, f"specified by {source}")
            turns = Turns(workers.rank, workers.size, param.test_iter[index])
            context = Context(
                engine,
                random,
                noise,
                seed,
                turns=turns,
                timeline=self.timeline,
                inference=whole_passes,
                whole_passes=whole_passes,
                as_worker_0=workers.broadcast_object,
            )
            self.test_nets.append(Net(net_param, context))
            self._finetune(self.test_nets[-1])
            self.test_nets[-1].debug_info = param.debug_info
        need = check_memory(self.net, self.histories)
        if whole_passes and workers.rank == 0:
            log.info(f"Memory for training: {need}")
        count = self.net.parameters.extent
        self.data = aligned_zeros(engine.xp, count)
        self.diff = self.exchange.allocate(engine.xp, count)
        self.net.parameters.flatten(self.data, self.diff)
        self.history: list[Array] = [aligned_zeros(engine.xp, count) for _ in range(self.histories)]
        self.sharded = ShardedBatches(self, parts) if isinstance(parts, Shards) else None
        workers.broadcast(self.data)
        engine.adopt_parameters(self.data, self.diff)
        log.solver_done()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def solve(self, resume: str | None = None) -> None:
        """Train up to max_iter, then snapshot, display and test once more, as the solver's parameters ask."""
        param = self.param
        log.solving(self.net.name, param.lr_policy)
        if resume:
            log.restoring(resume)
            self.restore(resume)
        if self.iteration > param.max_iter:
            log.warning(f"Nothing to train: this is iteration {self.iteration}, and max_iter is {param.max_iter}")
        self.step(param.max_iter - self.iteration)
        just_written = param.snapshot and self.iteration % param.snapshot == 0
        if (param.snapshot_after_train or self._stopped is Action.TERMINATE) and not just_written:
            self.snapshot()
        if self._stopped is not Action.NONE:
            log.stopped_early()
            return
        if param.display and self.iteration % param.display == 0:
            self.context.begin_pass(self.iteration, self.context.first_sample)
            self.smoothed.add(self._forward())
            log.final_loss(self.iteration, float(self.smoothed.mean))
        if param.test_interval and self.iteration % param.test_interval == 0:
            self.test_all()
        log.optimization_done()

    def step(self, iterations: int) -> None:
        """Take this many iterations: test when due, forward, backward, update, snapshot when due."""
        param = self.param
        last = self.iteration + iterations
        self.timeline.iteration = self.iteration
        if not self._goes_on:
            self.smoothed = SmoothedLoss(param.average_loss)
        self._goes_on = False
        self._stopped = Action.NONE
        self._running.clear()
        shown, clock = self.iteration, time.perf_counter()
        while self.iteration < last:
            self.net.parameters.clear_diffs()
            tests = param.test_interval and self.iteration % param.test_interval == 0
            if tests and (self.iteration > 0 or param.test_initialization):
                self._catch_up()
                self.test_all()
                if self._stopped is not Action.NONE:
                    return
            for callback in self.on_start:
                callback()
            display = bool(param.display) and self.iteration % param.display == 0
            self.net.debug_info = display and param.debug_info
            self._running.append(Iteration(self._forward_backward()))
            if display or not self.runs_ahead:
                self._catch_up()
            if display:
                now = time.perf_counter()
                rate = (self.iteration - shown) / (now - clock)
                log.iteration(self.iteration, rate, now - clock, param.display, float(self.smoothed.mean))
                shown, clock = self.iteration, now
                self._log_outputs()
            for callback in self.on_gradients_ready:
                callback()
            with self.timeline.span(UPDATE):
                self.apply_update()
            self.iteration += 1
            self.timeline.iteration = self.iteration
            self._running[-1].rate = self.rate
            action = self.agreed_action()
            due = (bool(param.snapshot) and self.iteration % param.snapshot == 0) or action is Action.SNAPSHOT
            goes_on = action is Action.NONE and not due and self.iteration < last
            self._catch_up(ahead=1 if self.runs_ahead and goes_on else 0)
            while self._running and (smoothed := self._running[0].smoothed) is not None:
                rate = self._running.popleft().rate
                for observer in self.on_iteration:
                    observer(smoothed, rate)
            if due or self.iteration % WEIGHTS_CHECKED == 0 or self.on_nan == "snapshot":
                self._check_weights()
            if due:
                self.snapshot()
            if action in (Action.STOP, Action.TERMINATE):
                self._stopped = action
                return

    @property
    def runs_ahead(self) -> bool:
        """Whether an iteration's work is handed to the device before the loss of the one before is known."""
        return self.engine.asynchronous and not self.sharded and self.on_nan != "snapshot"

    def _forward_backward(self) -> Callable[[], np.float32]:
        """Gradients of all passes, added up in `diff`; returns what gives the mean loss."""
        with memory_errors(self.net, self.histories, self.engine.xp):
            before = snapshot.Memory(self) if self.on_nan == "snapshot" else None
            losses = [known(self.sharded.forward_backward())] if self.sharded else self._whole_passes()
        self._last_good = before
        passes = np.float32(self.passes)
        return lambda: sum((loss() for loss in losses), np.float32(0)) / passes

    def _whole_passes(self) -> list[Callable[[], np.float32]]:
        """Each pass is over all that this worker has of a batch; the last one's gradients leave while backward runs."""
        losses = []
        share, passes = self.share, self.passes
        for part in range(passes):
            self.context.begin_pass(self.iteration, part * share.total + share.first)
            losses.append(self._start_forward())
            if part < passes - 1:
                with self.timeline.span(BACKWARD):
                    self.net.backward()
        if self.exchange.takes_momentum:  # a script may have changed it since the last step
            self.exchange.take_momentum(self.param.momentum, self.param.clip_gradients)
        with self.timeline.span(BACKWARD):
            self.net.backward(exchange=self.exchange)
        if not self.exchange.on_streams:
            self.exchange.finish()
        return losses

    def _start_forward(self) -> Callable[[], np.float32]:
        """What gives the loss of one more batch, over all workers; SolverError if that is not finite and to stop at."""
        iteration = self.iteration
        with self.timeline.span(FORWARD):
            pending = self.net.start_forward()

        def loss() -> np.float32:
            self.exchange.wait_for(pending)
            value = np.float32(self.workers.sum(pending.value()))
            if not np.isfinite(value):
                self.net.explain()
                if self.on_nan != "continue":
                    self.stop_at_nan(f"loss = {log.number(value)}", self.net.first_bad_blob(), iteration)
            return value

        return loss if self.runs_ahead else known(loss())

    def _forward(self) -> np.float32:
        """The loss of one more batch."""
        return self.sharded.forward() if self.sharded else self._start_forward()()

    def _catch_up(self, ahead: int = 0) -> None:
        """Take in the losses of the iterations that were started, but of the last `ahead`."""
        for iteration in list(self._running)[: len(self._running) - ahead]:
            if iteration.smoothed is None:
                self.smoothed.add(iteration.loss())
                iteration.smoothed = float(self.smoothed.mean)

    @property
    def share(self) -> Share:
        """What this worker has of the batch of one pass."""
        return self.context.share or self.workers.share(self.net.batch_size)

    def agreed_action(self) -> Action:
        """What a signal to any of the workers asks for; all hear of it at the same iteration."""
        return agree(self.requested_action(), self.workers)

    def _log_outputs(self) -> None:
        if self.sharded:
            sums = self.sharded.outputs
        else:
            outputs = zip(self.net.outputs(), self.output_values(), strict=True)
            sums = [self._over_workers(blob, values) for (_, blob, _), values in outputs]
        index = 0
        for (name, _, weight), values in zip(self.net.outputs(), sums, strict=True):
            for value in values:
                log.net_output("Train", index, name, float(value), weight)
                index += 1

    def _over_workers(self, blob: Blob, values: np.ndarray) -> np.ndarray:
        """An output of the training net over the whole batch, for worker 0; all workers must call this.

        It is the sum of the workers' values; or, where there is one for each sample, those of all samples in the order
        of the batch, of which the workers may have unequal numbers.
        """
        if self.workers.size == 1:
            return values
        for_each = bool(self.share.count) and blob.shape[:1] == (self.share.count,)
        if self.workers.sum(for_each) < self.workers.size:
            return self.workers.sum_array(values)
        return np.concatenate(self.workers.gather(values) or [values])

    def output_values(self) -> list[np.ndarray]:
        """The training net's outputs after a pass, each flat."""
        return [self.engine.to_numpy(blob.data).reshape(-1) for _, blob, _ in self.net.outputs()]

    def _check_weights(self) -> None:
        """A weight that is no number need not show in the loss: a ReLU may make a 0 of it.

        Statistics of BatchNorm that each worker has of its own may have gone wrong on one of them alone, so the workers
        agree on whether to stop.
        """
        if self.on_nan == "continue":
            return
        bad = not self.engine.is_finite(self.data)
        if self.workers.sum(bad):
            self.stop_at_nan("a weight is not finite", self.net.first_bad_blob())

    def stop_at_nan(self, what: str, bad_blob: str | None, iteration: int | None = None) -> None:
        """Raise the SolverError that says where the first value is that is not finite. All workers must come here."""
        found = [bad for bad in self.workers.gather(bad_blob) or [] if bad]
        iteration = self.iteration if iteration is None else iteration
        bad, saved = found[0] if found else "the loss itself", ""
        if self.on_nan == "snapshot" and self._last_good is not None:
            saved = self._save_last_good(self._last_good)
        raise SolverError(
            f"iteration {iteration}: {what}; the first value that is not finite is in {bad}"
            f"{saved}. Lower base_lr, set clip_gradients, or check the data (--on-nan continue goes on all the same)"
        )

    def _save_last_good(self, state: snapshot.Memory) -> str:
        """Write the state as a snapshot, and say where it is, or why it could not be written."""
        state.put_back(self)
        try:
            return f"; the last good state is in {self.snapshot()}"
        except (SnapshotError, OSError) as problem:
            return f"; the last good state could not be written ({problem})"

    # --- testing ------------------------------------------------------------------------------------------------------

    def test_all(self) -> None:
        self._test_began = Point.of(self)
        memory = memory_errors(self.net, self.histories, self.engine.xp)
        with memory, self.timeline.span(TEST), self._mean_statistics(), self.engine.fixed_weights():
            for index in range(len(self.test_nets)):
                if self._stopped is Action.NONE:
                    testing.test(self, index)
        if self._stopped is Action.NONE:
            self._test_began = None

    def stop_testing(self) -> bool:
        """Follow a signal in the middle of testing; whether it ends the test."""
        action = self.agreed_action()
        if action is Action.SNAPSHOT:
            self.snapshot()
        elif action is not Action.NONE:
            self._stopped = action
        return self._stopped is not Action.NONE

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> str:
        """Write model and state; returns the path of the state, or "" on workers other than 0, which does so for all.

        In the middle of a test it says where the run stood before, since who resumes there tests once more.
        """
        with self.timeline.span(SNAPSHOT):
            point = self._test_began or Point.of(self)
            with self._mean_statistics():
                return snapshot.write(self, point)

    def restore(self, path: str) -> None:
        """Go on from a solver state. Raises SnapshotError, and changes nothing, if it is damaged or does not fit."""
        snapshot.restore(self, path)
        self._test_began = None
        self._goes_on = True

    @contextlib.contextmanager
    def _mean_statistics(self) -> Iterator[None]:
        """Where BatchNorm is each worker's own: its running statistics averaged over them, for the time being."""
        layers = [layer for layer in self.net.layers if layer.type == "BatchNorm"]
        if self.workers.size == 1 or self.context.sync_batch_norm or not layers:
            yield
            return
        blobs = [blob for layer in layers for blob in layer.blobs]
        own = [blob.data.copy() for blob in blobs]
        try:
            for blob in blobs:
                blob.data[...] = self.workers.sum_array(blob.data) / np.float32(self.workers.size)
            yield
        finally:
            for blob, values in zip(blobs, own, strict=True):
                blob.data[...] = values

    def leave_workers(self) -> None:
        """Give back communicators and shared memory after the last sum. The solver keeps its weights but cannot train.

        All workers must call this, so it has no place where an error has ended one of them.
        """
        if self.engine.xp is np:  # where the gradients lie in memory that the exchange gives back
            self.diff = aligned_zeros(np, self.diff.size)
            self.net.parameters.flatten(self.data, self.diff)
        self.exchange.close()
        self.workers.close()

    def close(self) -> None:
        for net in (self.net, *self.test_nets):
            net.close()

    def _finetune(self, net: Net) -> None:
        """Copy the weights that the solver's parameters name, in order; one entry may hold several, by commas."""
        paths = [path.strip() for paths in self.param.weights for path in paths.split(",")]
        given: set[str] = set()
        for path in paths:
            if not path:
                raise SolverError(f'the list of weights "{",".join(paths)}" has an empty name in it; take it out')
            log.finetuning(path)
            given.update(layer.name for layer in load_weights(net, path).layers)
        if paths and net is self.net:
            tell_untouched(net, given, ", ".join(paths))

    def check(self) -> None:
        """Refuse parameters that make no sense; a rule adds its own demands."""
        param = self.param
        if param.average_loss < 1:
            raise SolverError("average_loss must be 1 or more")
        if param.iter_size < 1:
            raise SolverError("iter_size must be 1 or more")
        if param.regularization_type not in ("L1", "L2"):
            raise SolverError(f"unknown regularization_type '{param.regularization_type}'; known ones: L1, L2")
        learning_rate(param, 0)  # refuses an unknown policy
        trust_ratio.check(param, self.exchange.takes_momentum)
        if self.engine.scales_gradients and (trust_ratio.is_wanted(param) or self.exchange.takes_momentum):
            what = "rates of each layer's own" if trust_ratio.is_wanted(param) else "a compression with momentum"
            raise SolverError(f"--math fp16 scales gradients, and does not go with {what}: use --math bf16")
        if self.exchange.takes_momentum:
            if not self.lends_momentum:
                raise SolverError(
                    f"solver type {param.type} does not go with a compression that applies the momentum of SGD itself "
                    '(topk): use type: "SGD", or another compression'
                )
            self.exchange.take_momentum(param.momentum, param.clip_gradients)


def _check_same(workers: Workers, what: str, *messages: Any) -> None:
    """Workers that run other nets, or other settings, would part at some sum and wait for one another for ever."""
    if workers.size == 1:
        return
    texts = []
    for message in messages:
        own = type(message).FromString(message.SerializeToString())
        if "device_id" in own.DESCRIPTOR.fields_by_name:
            own.ClearField("device_id")  # each has its own
        texts.append(str(own))
    workers.check_same(what, "".join(texts).encode())


_registry: dict[str, type[Solver]] = {}
SolverClass = TypeVar("SolverClass", bound=type[Solver])


def register_solver(solver_type: str) -> Any:
    """Class decorator: make this class the one for `type: "solver_type"`."""

    def add(cls: SolverClass) -> SolverClass:
        _registry[solver_type] = cls
        return cls

    return add


def solver_types() -> list[str]:
    return sorted(_registry)


def create_solver(param: Any, engine: Engine, *arguments: Any, **options: Any) -> Solver:
    """The solver for a SolverParameter (see `fcaffe.proto.read_solver`); further arguments as of Solver."""
    if param.type not in _registry:
        raise SolverError(f"unknown solver type '{param.type}'; known ones: {', '.join(solver_types())}")
    return _registry[param.type](param, engine, *arguments, **options)
