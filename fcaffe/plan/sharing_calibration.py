"""Measures what a training of several ranks takes more of their cores than each of them alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.parallel.world import World
from fcaffe.plan.machine import Machine
from fcaffe.plan.net_calibration import training_of
from fcaffe.plan.question import Question
from fcaffe.plan.reductions import sum_of
from fcaffe.plan.work import Work
from fcaffe.timeline import Timeline
from fcaffe.tools.shapes import with_batch
from fcaffe.tools.step_bench import Training, turn_length

TURNS, FEWEST = 7, 3  # of which the median counts; fewer where one iteration lasts as long as a turn


def measure_sharing(work: Work, engine: Engine, machine: Machine, batch: int, world: World) -> float:
    """Seconds of a core that a rank takes for each sum of gradients beside its messages and additions, which `machine`
    knows; the mean of the ranks. Collective.

    Trainings of the net at this batch for each rank take turns, one by all ranks together, and one by each alone.
    Between hosts what the first takes more is measured in seconds of cores, since waiting for links is none of it; on
    one host, where ranks wait for nothing but one another, by the clock.
    """
    between = len(set(world.hosts)) > 1
    name = "ring" if between else "auto"
    log.info(f"Measuring what sums take of the cores in trainings of {work.name} at a batch of {batch}")
    param = with_batch(work.param, work.inputs, batch)
    clock = time.process_time if between else time.perf_counter
    with log.quiet():
        trainings = [training_of(work, param, engine, **options) for options in ({}, _sharing(world, name, between))]
    alone, together = trainings
    taken: list[list[float]] = [[], []]
    try:
        length = world.comm.bcast(turn_length(alone))
        turn_length(together)
        for _ in range(TURNS if length > 1 else FEWEST):
            for training, seconds in zip(trainings, taken, strict=True):
                world.comm.Barrier()
                seconds.append(_seconds(training, length, clock))
    finally:
        for training in trainings:
            training.solver.close()
        together.solver.leave_workers()
    more = world.comm.allreduce(median(taken[1]) - median(taken[0])) / world.size
    cut = Question(work, machine, batch).cut(world.size)
    costs = [sum_of(name, machine, world.size, bucket.bytes) for bucket in cut]
    known = sum(cost.cpu if between else cost.seconds for cost in costs)
    return max(0.0, more - known) / len(cut)


def _seconds(training: Training, iterations: int, clock: Callable[[], float]) -> float:
    """Of one of so many iterations."""
    began = clock()
    training.solver.step(iterations)
    return (clock() - began) / iterations


def _sharing(world: World, name: str, overlap: bool) -> dict[str, Any]:
    """What lets a solver sum its gradients with the other ranks'."""
    from fcaffe.parallel.exchange import ReducingExchange
    from fcaffe.parallel.reductions import create_reduction
    from fcaffe.parallel.workers import MpiWorkers

    timeline, reduction = Timeline(), create_reduction(name, world.comm)
    return {
        "workers": MpiWorkers(world.comm, True, world.watchdog, timeline, reduction),
        "exchange": ReducingExchange(reduction, None, overlap and world.threads, world.watchdog, timeline),
        "timeline": timeline,
    }
