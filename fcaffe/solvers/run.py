"""Run: the nets, buffers and counters of a training. Solver adds the loop; its parts share the Run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.engines.memory import aligned_zeros
from fcaffe.errors import SolverError, UsageError
from fcaffe.net import Context, Net
from fcaffe.net.blob import Array
from fcaffe.net.build.filter import filter_net
from fcaffe.net.exchange import GradientExchange
from fcaffe.net.registry import follows_batches
from fcaffe.net.workers import Workers
from fcaffe.rng import CaffeRandom
from fcaffe.rng.counter import TRAINING, Moment
from fcaffe.share import Share, Turns
from fcaffe.solvers import trust_ratio
from fcaffe.solvers.control import Action, Observer
from fcaffe.solvers.learning_rate import learning_rate
from fcaffe.solvers.losses import SmoothedLoss
from fcaffe.solvers.memory_need import check_memory
from fcaffe.solvers.nets import check_same, finetune, missing_fields, test_net_params, train_net_param
from fcaffe.solvers.rules import Rule, create_rule
from fcaffe.solvers.shards import Shards, twin_of, why_no_twins
from fcaffe.solvers.snapshot.files import check_layer_names, check_writable
from fcaffe.solvers.snapshot.runs import Identity
from fcaffe.threads import shard_threads
from fcaffe.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of a training besides the solver's parameters and the engine.

    `on_nan` is that of NanPolicy, `keep_best` and `patience` are those of Best, `job` is that of Identity, and other
    settings are those of Context.

    Attributes:
        random: Caffe's generator; a `random_seed` in the solver's parameters restarts it.
        shards: 0, or the number of shards of a batch (see ShardedBatches).
        split_below: See Context. Weights are not split with `shards`, noise from Caffe's stream, a batch of each
            worker's own, or a compression that applies momentum.
        refuses_misfits: Raise SnapshotError for weights that fit no layer.
    """

    noise: str = "caffe"
    random: CaffeRandom = field(default_factory=lambda: CaffeRandom(None))
    workers: Workers = field(default_factory=Workers)
    exchange: GradientExchange = field(default_factory=GradientExchange)
    timeline: Timeline = field(default_factory=Timeline)
    sync_batch_norm: bool = True
    whole_passes: bool = True
    recompute: bool = False
    on_demand: bool = False
    shards: int = 0
    split_below: float = 0.0
    on_nan: str = "continue"
    refuses_misfits: bool = False
    keep_best: str = ""
    patience: int = 0
    requested_action: Callable[[], Action] = lambda: Action.NONE
    job: int = 0


class Run:
    """A training net, its test nets, all parameters in flat buffers, and the current iteration.

    Several workers split every batch, and the `exchange` sums their gradients. They take turns with test batches.
    Worker 0 alone logs and writes snapshots.

    Attributes:
        rate: The learning rate of the last update.
        data, diff, history: Float32 arrays of all parameters in the order of `Parameters.slices`, and one more for each
            history. The nets' blobs are views.
        nets: The training net, and with shards its twins, one for each further thread.
        gradients: `diff`; with shards it is the first row, and each row a sum that this worker gives to the exchange.
    """

    def __init__(self, param: Any, engine: Engine, options: Options) -> None:
        log.initializing_solver(log.message_string(str(param)))
        self.param, self.engine, self.options = param, engine, options
        self.workers, self.exchange, self.timeline = options.workers, options.exchange, options.timeline
        self.observers: list[Observer] = []
        self.requested_action = options.requested_action
        self.identity = Identity(param.snapshot_prefix, options.job)
        self.iteration = self.current_step = 0
        self.rate = 0.0
        self.smoothed = SmoothedLoss(param.average_loss)
        self.rule = _checked_rule(param, engine, self.exchange)
        for line in missing_fields(param):
            log.warning(line)
        if self.workers.rank == 0:
            check_writable(param)

        self._seed = self._start_random()
        self.shards = Shards(self.workers, options.shards) if options.shards else None
        splits = not (
            self.shards or self.workers.per_worker or self.exchange.applies_momentum or options.noise == "caffe"
        )
        self.context = self._context(
            split_below=options.split_below if splits else 0.0,
            workers=self.shards or self.workers,
            sync_batch_norm=options.sync_batch_norm,
            recompute=options.recompute and options.whole_passes,
            trains=True,
        )
        self.net, self.nets = self._train_nets()
        self.test_nets = self._test_nets()
        self.best: Any = None  # a Best, which the Solver sets if it is wanted
        self._allocate()

    def _start_random(self) -> int:
        """Set the generator, and return the seed, of all workers' nets: worker 0's, or the solver's `random_seed`."""
        random, seed = self.options.random, int.from_bytes(os.urandom(4), "little")
        if self.param.random_seed >= 0:
            seed = self.param.random_seed
            random.set_state(CaffeRandom(seed).state())
        random.set_state(self.workers.broadcast_object(random.state()))
        return int(self.workers.broadcast_object(seed))

    def _context(self, **settings: Any) -> Context:
        """A Context with these settings and the common ones of all nets of the run."""
        return Context(
            self.engine,
            self.options.random,
            self.options.noise,
            self._seed,
            timeline=self.timeline,
            whole_passes=self.options.whole_passes,
            on_demand=self.options.on_demand,
            as_worker_0=self.workers.broadcast_object,
            **settings,
        )

    def _train_nets(self) -> tuple[Net, list[Net]]:
        """Build the training net, and the list of it and its twins."""
        net_param, field = train_net_param(self.param)
        check_same(self.workers, "the solver and its training net", self.param, net_param)
        log.creating_train_net(field, "" if field.endswith("_param") else getattr(self.param, field))
        net = Net(net_param, self.context)
        check_layer_names(self.param, net.layers)
        finetune(net, self.param.weights, tell=True, strict=self.options.refuses_misfits)
        if not any(any(layer.loss_weights) for layer in net.layers):
            log.warning(
                "the training net has no loss, so nothing is learned; add a layer such as SoftmaxWithLoss, or give a "
                "layer a loss_weight"
            )
        workers = self.context.workers
        if workers.size > 1 and self.context.share is None and not workers.per_worker:
            if batch := self.context.unsplit:
                raise UsageError(f"cannot split a batch of {batch}, {workers.splitting}, or use at most {batch}")
            raise SolverError(f"the training net has no layer that reads a batch, {workers.splitting}")
        return net, [net, *(self._twins(net, net_param, self.shards) if self.shards else ())]

    def _twins(self, net: Net, net_param: Any, shards: Shards) -> list[Net]:
        """Further training nets, for the threads that compute shards beside this one."""
        if problem := why_no_twins(net, shards.in_step):
            if shards.in_step:
                raise SolverError(
                    f"--reproducible {shards.size} cannot give each shard a net of its own, which layers such as "
                    f"BatchNorm, Accuracy per class and LSTM need: this net has {problem}"
                )
            return []
        threads = shards.passes if shards.in_step else min(shard_threads(), shards.passes)
        return [twin_of(net, net_param) for _ in range(threads - 1)]

    def _test_nets(self) -> list[Net]:
        """Build the test nets."""
        sources = test_net_params(self.param)
        check_same(self.workers, "the test nets", *(net_param for net_param, _ in sources))
        nets = []
        for index, (net_param, source) in enumerate(sources):
            log.creating_test_net(index, f"specified by {source}")
            turns = Turns(self.workers.rank, self.workers.size, self.param.test_iter[index])
            if self.workers.size > 1 and any(map(follows_batches, filter_net(net_param).layer)):
                log.info(f"Worker 0 runs test net #{index} alone: its layers need all batches in their order")
                turns = Turns()
            nets.append(Net(net_param, self._context(inference=self.options.whole_passes, turns=turns)))
            finetune(nets[-1], self.param.weights)
            nets[-1].debug_info = self.param.debug_info
        return nets

    def _allocate(self) -> None:
        """Check the memory, allocate the flat buffers, and copy worker 0's initial weights to all workers."""
        count = self.net.parameters.extent
        need = check_memory(self.net, self.rule.histories, len(self.nets))
        if self.options.whole_passes and self.workers.rank == 0:
            log.info(f"Memory for training: {need}")
        rows = max(map(len, self.shards.nodes)) if self.shards else 1
        self.data: Array = aligned_zeros(self.engine.xp, count)
        self.gradients: Array = self.exchange.allocate(self.engine.xp, rows * count).reshape(rows, count)
        self.diff: Array = self.gradients[0]
        for twin in self.nets[1:]:
            twin.parameters.flatten(self.data, aligned_zeros(self.engine.xp, count))
        self.net.parameters.flatten(self.data, self.diff)
        self.history: list[Array] = [aligned_zeros(self.engine.xp, count) for _ in range(self.rule.histories)]
        self.workers.broadcast(self.data[: self.net.parameters.exchanged])

    @property
    def share(self) -> Share:
        """The samples of one pass that this worker computes."""
        return self.context.share or self.workers.share(self.net.batch_size)

    @property
    def passes(self) -> int:
        """How many passes add up their gradients for an update."""
        return int(self.param.iter_size)

    def moment(self, number: int) -> Moment:
        """A forward pass of this iteration, by its number."""
        return Moment(TRAINING, self.iteration, number)

    @property
    def scalar_outputs(self) -> bool:
        """Whether all outputs of the training net are scalars, such as losses."""
        return all(blob.shape == () for _, blob, _ in self.net.outputs())

    def output_values(self, net: Net | None = None) -> list[np.ndarray]:
        """The outputs of the training net, or of a twin, after a pass, each flat; see `Context.addend`."""
        net = net or self.net
        return [net.context.addend(blob).reshape(-1) for _, blob, _ in net.outputs()]

    def leave_workers(self) -> None:
        """Free communicators and shared memory after the last sum. The run keeps its weights but cannot train.

        Collective: do not call it after an error that has ended another worker.
        """
        if self.engine.xp is np:  # the exchange frees the memory of the gradients
            self.diff = self.gradients = aligned_zeros(np, self.diff.size)
            self.net.parameters.flatten(self.data, self.diff)
        self.exchange.close()
        self.workers.close()

    def close(self) -> None:
        for net in (self.net, *self.test_nets):
            net.close()


def _checked_rule(param: Any, engine: Engine, exchange: GradientExchange) -> Rule:
    """Check the solver's parameters and return the update rule. Raises SolverError."""
    rule = create_rule(param, engine)
    if param.average_loss < 1:
        raise SolverError("average_loss must be 1 or more")
    if param.iter_size < 1:
        raise SolverError("iter_size must be 1 or more")
    if param.regularization_type not in ("L1", "L2"):
        raise SolverError(f"unknown regularization_type '{param.regularization_type}'; known ones: L1, L2")
    learning_rate(param, 0)  # refuses an unknown policy
    trust_ratio.check(param, exchange.applies_momentum)
    if engine.loss_scale is not None:
        for is_given, what in (
            (trust_ratio.is_wanted(param), "rates of each layer's own"),
            (exchange.applies_momentum, "a compression with momentum"),
            (not rule.all_at_once, f"solver type {param.type}"),
        ):
            if is_given:
                raise SolverError(f"--math fp16 scales gradients, and does not go with {what}: use --math bf16")
    if exchange.applies_momentum:
        rule = rule.with_momentum_applied()
        exchange.set_momentum(param.momentum, param.clip_gradients)
    return rule
