"""Run: the nets, buffers and counters of a training. Solver adds the loop; its parts share the Run."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data.share import Share, Turns
from fcaffe.engines import Engine
from fcaffe.engines.memory import aligned_zeros
from fcaffe.errors import SolverError, UsageError
from fcaffe.layers.forks.detection_files import needs_order
from fcaffe.net import Context, Net
from fcaffe.net.blob import Array
from fcaffe.net.exchange import GradientExchange
from fcaffe.net.shards import Shards
from fcaffe.net.workers import Workers
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import trust_ratio
from fcaffe.solvers.batch_growth import GrowingBatch
from fcaffe.solvers.evaluation import check_evaluation
from fcaffe.solvers.learning_rate import Schedule, learning_rate
from fcaffe.solvers.losses import SmoothedLoss
from fcaffe.solvers.memory_need import check_memory
from fcaffe.solvers.nets import check_same, finetune, missing_fields, test_net_params, train_net_param
from fcaffe.solvers.observer import Observer
from fcaffe.solvers.rules import Rule, create_rule
from fcaffe.solvers.snapshot.paths import check_writable
from fcaffe.solvers.twin import twin_of, why_no_twins
from fcaffe.solvers.wide_products import slices_between, wide_products
from fcaffe.threads import shard_threads
from fcaffe.timeline import Timeline


class Run:
    """A training net, its test nets, all parameters in flat buffers, and the current iteration.

    With several workers, each has one Run in step with the others. They split every batch, and the `exchange` sums
    their gradients. They take turns with test batches. Worker 0 alone logs and writes snapshots.

    Args:
        noise: The stream that Dropout draws from (see Context).
        random: Caffe's generator; a `random_seed` in the solver's parameters restarts it.
        sync_batch_norm, whole_passes, recompute, on_demand: See Context.
        shards: 0, or the number of shards of a batch: the weights have the same bits on any number of workers up to
            that (see ShardedBatches).
        grow_batch: 0, or the samples up to which the batch grows where the rate would drop (see GrowingBatch).

    Attributes:
        data, diff, history: Float32 arrays of all parameters, in layer order, and one more for each history. The nets'
            blobs are views.
        nets: The training net, and with shards its twins, one for each further thread.
        gradients: `diff`, or with shards a row for each sum that this worker gives to the exchange. The rows lack the
            gradients that wide products compute.
        summed: The slices of the flat gradients that the exchange sums.
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
        grow_batch: int = 0,
        on_demand: bool = False,
    ) -> None:
        self.param = param
        self.engine = engine
        self.workers = workers = Workers() if workers is None else workers
        self.exchange = GradientExchange() if exchange is None else exchange
        self.timeline = Timeline() if timeline is None else timeline
        self.observers: list[Observer] = []
        self.iteration = 0
        self.current_step = 0
        self.rate = 0.0  # of the last update
        self.smoothed = SmoothedLoss(param.average_loss)

        log.initializing_solver(str(param))
        self.rule = _checked_rule(param, engine, self.exchange)
        for line in missing_fields(param):
            log.warning(line)
        if workers.rank == 0:
            check_writable(param)
        of_all_nets = {
            "engine": engine,
            "noise": noise,
            "timeline": self.timeline,
            "whole_passes": whole_passes,
            "as_worker_0": workers.broadcast_object,
            **self._random_and_seed(random),
        }
        self.shards = Shards(workers, shards) if shards else None
        self.context = Context(
            **of_all_nets,
            workers=self.shards or workers,
            sync_batch_norm=sync_batch_norm,
            recompute=recompute and whole_passes,
            on_demand=on_demand,
        )
        self.net = self._train_net()
        self.nets = [self.net, *self._twins()]
        self.schedule = self._schedule(grow_batch)
        self.test_nets = self._test_nets({**of_all_nets, "inference": whole_passes, "on_demand": on_demand})
        check_evaluation(param, self.test_nets)
        of_one = sum(product.part.stop - product.part.start for product in self.context.wide_products.values())
        need = check_memory(self.net, self.rule.histories, len(self.nets), of_one)
        if whole_passes and workers.rank == 0:
            log.info(f"Memory for training: {need}")
        self._allocate()

    def _random_and_seed(self, random: CaffeRandom | None) -> dict[str, Any]:
        """Return the generator and the seed of all nets, which worker 0 chooses and `random_seed` replaces."""
        random = CaffeRandom(None) if random is None else random
        seed = int.from_bytes(os.urandom(4), "little")
        if self.param.random_seed >= 0:
            seed = self.param.random_seed
            random.set_state(CaffeRandom(seed).state())
        random.set_state(self.workers.broadcast_object(random.state()))
        return {"random": random, "seed": self.workers.broadcast_object(seed)}

    def _train_net(self) -> Net:
        net_param, field = self._net_param = train_net_param(self.param)
        check_same(self.workers, "the solver and its training net", self.param, net_param)
        log.creating_train_net(field, "" if field.endswith("_param") else getattr(self.param, field))
        net = Net(net_param, self.context)
        finetune(net, self.param.weights, tell=True)
        if not any(node.has_loss for node in net.nodes):
            log.warning(
                "the training net has no loss, so nothing is learned; add a layer such as SoftmaxWithLoss, or give a "
                "layer a loss_weight"
            )
        parts = self.shards or self.workers  # as the training net's layers see them
        if parts.size > 1 and self.context.share is None and not parts.per_worker:
            if batch := self.context.unsplit:
                raise UsageError(f"cannot split a batch of {batch}, {parts.splitting}, or use at most {batch}")
            raise SolverError(f"the training net has no layer that reads a batch, {parts.splitting}")
        return net

    def _twins(self) -> list[Net]:
        """Further training nets, for the threads that compute shards beside this one."""
        if self.shards is None:
            return []
        if not (why_no_twins(self.net, True) or self.param.debug_info):
            self.context.wide_products.update(wide_products(self.net, self.shards))
            if self.context.wide_products:
                self.shards.run_shards_in_step()
        in_step = self.shards.in_step
        if problem := why_no_twins(self.net, in_step):
            if in_step:
                raise SolverError(
                    f"--reproducible {self.shards.size} cannot give each shard a net of its own, which layers such as "
                    f"BatchNorm, Accuracy per class and LSTM need: this net has {problem}"
                )
            return []
        threads = len(self.shards.own) if in_step else min(shard_threads(), len(self.shards.own))
        return [twin_of(self.net, self._net_param[0]) for _ in range(threads - 1)]

    def _schedule(self, grow_batch: int) -> Schedule:
        if grow_batch and self.exchange.takes_momentum:
            raise SolverError(
                "batch growth does not go with a compression that applies the momentum of SGD (topk): it would add up "
                "gradients of batches of different sizes"
            )
        return GrowingBatch(self.param, self.share.total, grow_batch) if grow_batch else Schedule(self.param)

    def _test_nets(self, settings: dict[str, Any]) -> list[Net]:
        """Build the test nets, in a Context of these settings."""
        sources = test_net_params(self.param)
        check_same(self.workers, "the test nets", *(net_param for net_param, _ in sources))
        nets = []
        for index, (net_param, source) in enumerate(sources):
            log.creating_test_net(index, f"specified by {source}")
            turns = Turns(self.workers.rank, self.workers.size, self.param.test_iter[index])
            if needs_order(net_param) and self.workers.size > 1:
                log.info(f"Worker 0 runs test net #{index} alone: its layers need all images in their order")
                turns = Turns()
            nets.append(Net(net_param, Context(**settings, turns=turns)))
            finetune(nets[-1], self.param.weights)
            nets[-1].debug_info = self.param.debug_info
        return nets

    def _allocate(self) -> None:
        """Allocate the flat buffers, and copy worker 0's initial weights to all workers."""
        count = self.net.parameters.extent
        self.data: Array = aligned_zeros(self.engine.xp, count)
        self.summed = slices_between([product.part for product in self.context.wide_products.values()], count)
        summed = sum(part.stop - part.start for part in self.summed)
        rows = max(map(len, self.shards.nodes)) if self.shards else 1
        gradients = self.exchange.allocate(self.engine.xp, summed, rows)
        self.gradients: Array = gradients.reshape(rows, summed)
        self.diff: Array = self.gradients[0] if summed == count else aligned_zeros(self.engine.xp, count)
        for twin in self.nets[1:]:
            twin.parameters.flatten(self.data, aligned_zeros(self.engine.xp, count))
        self.net.parameters.flatten(self.data, self.diff)
        self.history: list[Array] = [aligned_zeros(self.engine.xp, count) for _ in range(self.rule.histories)]
        self.workers.broadcast(self.data)

    @property
    def share(self) -> Share:
        """The samples of one pass that this worker computes."""
        return self.context.share or self.workers.share(self.net.batch_size)

    @property
    def passes(self) -> int:
        """How many passes add up their gradients for the update of this iteration."""
        return self.schedule.passes(self.iteration)

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
    trust_ratio.check(param, exchange.takes_momentum)
    if engine.scales_gradients:
        for is_given, what in (
            (trust_ratio.is_wanted(param), "rates of each layer's own"),
            (exchange.takes_momentum, "a compression with momentum"),
            (not rule.all_at_once, f"solver type {param.type}"),
        ):
            if is_given:
                raise SolverError(f"--math fp16 scales gradients, and does not go with {what}: use --math bf16")
    if exchange.takes_momentum:
        rule = rule.with_momentum_applied()
        exchange.take_momentum(param.momentum, param.clip_gradients)
    return rule
