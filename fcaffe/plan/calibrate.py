"""Measures a machine for its file: its device, a net's layers, and the links between ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.engines.memory import aligned_zeros, obtainable_bytes
from fcaffe.errors import UsageError
from fcaffe.plan.devices import LINKS, Device, Link
from fcaffe.plan.machine import FCAFFE, Machine, MeasuredNet, plain
from fcaffe.plan.work import Work
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers import Solver
from fcaffe.timeline import BACKWARD, FORWARD, UPDATE, Timeline
from fcaffe.tools.peaks import gemm_gflops, memory_gbytes
from fcaffe.tools.shapes import with_batch
from fcaffe.tools.step_bench import Training, turn_length
from fcaffe.tools.synthetic import PLAIN, RATE
from fcaffe.tools.timing import time_backward, time_forward

PASSES, TURNS, FEWEST = 5, 11, 3  # medians count: an iteration has fast and slow modes, and a training gets both
BUDGET = 3.0  # seconds of the turns at one batch, unless there are few by then
SHORT, LONG = 64, 8 << 20  # bytes of the sums that tell a link's latency and bandwidth
FLOATS = 1 << 24  # of the arrays that are added: more than caches hold
RANKS = 1 << 10  # of a host: CPUs take any number
RULE = ("type", "momentum", "momentum2", "delta", "rms_decay", "weight_decay", "regularization_type", "clip_gradients")


def measure_machine(engine: Engine, device_name: str, cores: int) -> Machine:
    """One rank's device and its memory."""
    log.info("Measuring matrix products, memory and additions")
    peak, bandwidth = {"fp32": 1e9 * gemm_gflops(engine)}, 1e9 * memory_gbytes(engine)
    memory = float(obtainable_bytes(engine.xp) or 0) or 1e9
    is_cpu = engine.xp is np
    return Machine(
        "this machine",
        Device(device_name, peak, memory, bandwidth, efficiency=0.7, layer_seconds=1e-5),
        devices_per_node=RANKS if is_cpu else 1,
        within=LINKS["memory"],
        between=LINKS["1GbE"],
        exchange=FCAFFE,
        cores=cores if is_cpu else None,
        add_bandwidth=_add_bandwidth() if is_cpu else None,
    )


def _add_bandwidth() -> float:
    """Bytes of a buffer that NumPy adds to another in a second."""
    a, b = aligned_zeros(np, FLOATS), aligned_zeros(np, FLOATS)
    taken = []
    for _ in range(PASSES):
        began = time.perf_counter()
        np.add(a, b, out=a)
        taken.append(time.perf_counter() - began)
    return a.nbytes / median(taken)


def measure_links(machine: Machine, comm: Any, hosts: Sequence[str], beat: Callable[[str], None]) -> Machine:
    """The machine with the links between the ranks of `comm`, as the reductions use them. Collective.

    A sum by a server, between the first two ranks of a host or of two hosts, is two messages and an addition.
    """
    from fcaffe.parallel.bench import measure

    if len(set(hosts)) > 1 or not machine.cores:
        machine = replace(machine, devices_per_node=max(hosts.count(host) for host in hosts))
    for name, same in (("within", True), ("between", False)):
        pairs = ((a, b) for b in range(len(hosts)) for a in range(b) if (hosts[a] == hosts[b]) == same)
        if (pair := next(pairs, None)) is None:
            continue
        beat(f"measuring sums {name} hosts")
        part = comm.Split(0 if comm.rank in pair else 1 + comm.rank, comm.rank)
        sums = measure(part, ["server"], [SHORT, LONG], [2], beat) if part.size == 2 else []
        part.Free()
        short, long = comm.bcast([result.seconds for result in sums], root=pair[0])
        adding = LONG / machine.add_bandwidth if machine.add_bandwidth else 0.0
        link: dict[str, Any] = {name: link_of(f"{name} (measured)", short, long - adding)}
        machine = replace(machine, **link)
    return machine


def link_of(name: str, short: float, long: float) -> Link:
    """The link over which two messages of SHORT or LONG bytes, one each way, take these seconds."""
    bandwidth = (LONG - SHORT) / max((long - short) / 2, 1e-9)
    return Link(name, max(short / 2 - SHORT / bandwidth, 1e-8), bandwidth, "measured")


def shares(batch: int, workers: Sequence[int]) -> list[int]:
    """The batches to measure for numbers of workers that split one: two at least, to interpolate between them."""
    found = {batch, max(1, batch // 4), *(-(-batch // count) for count in workers)}
    if len(found) < 2:
        raise UsageError(f"a batch of {batch} cannot be measured at two sizes; give --batch 2 or more")
    return sorted(found)


def measure_net(
    work: Work, engine: Engine, batches: Sequence[int], ranks: int, meet: Callable[[], object] = lambda: None
) -> MeasuredNet:
    """The layers of a net at these batches, on data in memory.

    The passes of a training are faster than the sum of the layers, as they fuse some. So each layer gets its share of
    these passes, by what it takes alone. `meet` waits for the other ranks: all measure the same batch at once.
    """
    layers: dict[str, list[tuple[float, float]]] = {layer.name: [] for layer in work.layers}
    updates, rests = [], []
    for batch in batches:
        log.info(f"Measuring the layers of {work.name} at a batch of {batch}")
        with log.quiet():
            meet()
            training = _training_of(work, batch, engine)
            try:
                _take_turns(training)
                meet()
                singly = _layers(training.solver.net)
            finally:
                training.solver.close()
        turns = training.turns
        seconds = median(turn.seconds for turn in turns)
        passes = [median(turn.split[kind] for turn in turns) for kind in (FORWARD, BACKWARD)]
        alone = [max(sum(pair[way] for pair in singly.values()), 1e-9) for way in (0, 1)]
        if engine.asynchronous:  # spans of the host's time say nothing of the device's
            passes = [seconds * one / sum(alone) for one in alone]
        updates.append(0.0 if engine.asynchronous else median(turn.split[UPDATE] for turn in turns))
        rests.append(max(0.0, seconds - sum(passes) - updates[-1]))
        for name, pair in singly.items():
            layers[name].append((pair[0] * passes[0] / alone[0], pair[1] * passes[1] / alone[1]))
    return MeasuredNet(work.name, ranks, list(batches), layers, median(updates), median(rests))


def _training_of(work: Work, batch: int, engine: Engine) -> Training:
    net = with_batch(work.param, work.inputs, batch)
    param = pb.SolverParameter(net_param=net, base_lr=RATE, lr_policy="fixed", random_seed=1)
    param.snapshot_after_train = False
    given = PLAIN if work.solver is None else {name: getattr(work.solver, name) for name in RULE}
    for name, value in given.items():
        setattr(param, name, value)
    return Training(work.name, Solver(param, engine, "counter", on_nan="stop", timeline=Timeline()))


def _take_turns(training: Training) -> None:
    length, began = turn_length(training), time.perf_counter()
    while len(training.turns) < FEWEST or (len(training.turns) < TURNS and time.perf_counter() - began < BUDGET):
        training.turns.append(training.take(length))


def _layers(net: Any) -> dict[str, tuple[float, float]]:
    """Seconds forward and backward of each layer by itself."""
    forwards, backwards = [], []
    for _ in range(PASSES):
        forward, backward = [0.0] * len(net.nodes), [0.0] * len(net.nodes)
        time_forward(net, forward)
        time_backward(net, backward)
        forwards.append(forward)
        backwards.append([seconds * node.needs_backward for seconds, node in zip(backward, net.nodes, strict=True)])
    singly = [map(median, zip(*rows[1:], strict=True)) for rows in (forwards, backwards)]  # the first warms up
    return dict(zip((node.name for node in net.nodes), zip(*singly, strict=True), strict=True))


def merged(old: Machine, new: Machine) -> Machine:
    """The new measurements, and those of the old ones that they do not replace: of other nets, of other numbers of
    ranks, and of links that there were not now."""
    fresh = {(plain(one.net), one.ranks) for one in new.measured}
    older = [one for one in old.measured if (plain(one.net), one.ranks) not in fresh]
    links: dict[str, Any] = {
        name: getattr(old, name)
        for name in ("within", "between")
        if "measured" in getattr(old, name).name and "measured" not in getattr(new, name).name
    }
    return replace(new, measured=(*older, *new.measured), **links)
