"""Measures a net for a machine's file: its layers, and what else an iteration of its training takes, on this rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.errors import UsageError
from fcaffe.net import Context, Net
from fcaffe.plan.machine import MeasuredNet
from fcaffe.plan.work import Work
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Solver
from fcaffe.timeline import BACKWARD, FORWARD, UPDATE, Timeline
from fcaffe.tools.shapes import with_batch
from fcaffe.tools.step_bench import Training, turn_length
from fcaffe.tools.synthetic import PLAIN, RATE
from fcaffe.tools.timing import time_backward, time_forward

# Medians count: an iteration has fast and slow modes on some machines, and a training gets both.
PASSES = 5
TURNS, FEWEST = 11, 3
BUDGET = 3.0  # seconds of the passes and of the turns, each, at one batch, unless there are few by then
RULE = ("type", "momentum", "momentum2", "delta", "rms_decay", "weight_decay", "regularization_type", "clip_gradients")


class Iteration(NamedTuple):
    """Seconds of one iteration's parts; `rest`: of all that is in none of the others."""

    forward: float
    backward: float
    update: float
    rest: float


def shares(batch: int, workers: Sequence[int]) -> list[int]:
    """The batches to measure for numbers of workers that split one: two at least, so that there is a line."""
    found = {-(-batch // count) for count in workers}
    found |= {batch, max(1, batch // 4)}
    if len(found) < 2:
        raise UsageError(f"a batch of {batch} cannot be measured at two sizes; give --batch 2 or more")
    return sorted(found)


def measure_net(
    work: Work, engine: Engine, batches: Sequence[int], ranks: int, meet: Callable[[], object] = lambda: None
) -> MeasuredNet:
    """The layers of a net at these batches, by the code of `fcaffe time`, in proportion to the passes of a training,
    which do the work of several layers in one; and a training's update and fixed cost. Data are zeros: reading has no
    part in it. `meet` waits for the other ranks, so that all of them measure the same batch at once."""
    layers: dict[str, list[tuple[float, float]]] = {layer.name: [] for layer in work.layers}
    iterations = []
    for batch in batches:
        log.info(f"Measuring the layers of {work.name} at a batch of {batch}")
        param = with_batch(work.param, work.inputs, batch)
        with log.quiet():
            meet()
            singly = _layers(param, engine)
            meet()
            iterations.append(_passes(param, engine) if engine.asynchronous else _training(work, param, engine))
        totals = [max(sum(pair[way] for pair in singly.values()), 1e-9) for way in (0, 1)]
        factors = iterations[-1].forward / totals[0], iterations[-1].backward / totals[1]
        for name, pair in singly.items():
            layers[name].append((pair[0] * factors[0], pair[1] * factors[1]))
    if engine.asynchronous:
        return MeasuredNet(work.name, ranks, list(batches), layers)
    update, rest = median(one.update for one in iterations), median(one.rest for one in iterations)
    return MeasuredNet(work.name, ranks, list(batches), layers, update, rest)


def _layers(param: Any, engine: Engine) -> dict[str, tuple[float, float]]:
    """Seconds forward and backward of each layer by itself."""
    net = Net(param, Context(engine, CaffeRandom(1), noise="counter"))
    try:
        forwards, backwards, began = [], [], time.perf_counter()
        for number in range(PASSES + 1):  # the first warms up
            if number > FEWEST and time.perf_counter() - began > BUDGET:
                break
            forward, backward = [0.0] * len(net.nodes), [0.0] * len(net.nodes)
            time_forward(net, forward)
            time_backward(net, backward)
            forwards.append(forward)
            backwards.append([seconds * node.needs_backward for seconds, node in zip(backward, net.nodes, strict=True)])
        names = [node.name for node in net.nodes]
    finally:
        net.close()
    singly = [[median(values) for values in zip(*rows[1:], strict=True)] for rows in (forwards, backwards)]
    return dict(zip(names, zip(*singly, strict=True), strict=True))


def training_of(work: Work, net: Any, engine: Engine, **options: Any) -> Training:
    """A training of the net with the solver of the work; `options` are those of `Solver`."""
    param = pb.SolverParameter(net_param=net, base_lr=RATE, lr_policy="fixed", random_seed=1)
    given = work.solver
    for name, value in PLAIN.items() if given is None else ((name, getattr(given, name)) for name in RULE):
        setattr(param, name, value)
    param.snapshot_after_train = False
    options.setdefault("timeline", Timeline())
    return Training(work.name, Solver(param, engine, "counter", on_nan="stop", **options))


def _training(work: Work, net: Any, engine: Engine) -> Iteration:
    """Of a training by one rank."""
    training = training_of(work, net, engine)
    turns, began = training.turns, time.perf_counter()
    try:
        length = turn_length(training)
        while len(turns) < FEWEST or (len(turns) < TURNS and time.perf_counter() - began < BUDGET):
            turns.append(training.take(length))
    finally:
        training.solver.close()
    forward, backward, update = (median(turn.split[kind] for turn in turns) for kind in (FORWARD, BACKWARD, UPDATE))
    rest = median(turn.seconds for turn in turns) - forward - backward - update
    return Iteration(forward, backward, update, max(0.0, rest))


def _passes(param: Any, engine: Engine) -> Iteration:
    """Of whole passes by an engine that runs behind the program."""
    net = Net(param, Context(engine, CaffeRandom(1), noise="counter"))
    taken = []
    try:
        with net.whole_passes():
            for _ in range(PASSES + 1):
                times = [time.perf_counter()]
                for work in (net.forward, net.backward):
                    work()
                    engine.synchronize()
                    times.append(time.perf_counter())
                taken.append((times[1] - times[0], times[2] - times[1]))
    finally:
        net.close()
    forward, backward = (median(pair[way] for pair in taken[1:]) for way in (0, 1))
    return Iteration(forward, backward, 0.0, 0.0)
