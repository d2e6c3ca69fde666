"""Measures a machine for its file: its device, the speed of a net, and the links between ranks."""

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
from fcaffe.plan.devices import LINKS, Device, Link
from fcaffe.plan.machine import FCAFFE, Machine
from fcaffe.plan.work import Work
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers import Solver
from fcaffe.timeline import Timeline
from fcaffe.tools.peaks import gemm_gflops, memory_gbytes
from fcaffe.tools.shapes import with_batch
from fcaffe.tools.step_bench import Training, take_turns
from fcaffe.tools.synthetic import PLAIN, RATE

PASSES, TURNS = 5, 7  # medians count: an iteration has fast and slow modes, and a training gets both
SHORT, LONG = 64, 8 << 20  # bytes of the sums that tell a link's latency and bandwidth
FLOATS = 1 << 24  # of the arrays that are added: more than caches hold
RANKS = 1 << 10  # of a host: CPUs take any number
RULE = ("type", "momentum", "momentum2", "delta", "rms_decay", "weight_decay", "regularization_type", "clip_gradients")


def measure_machine(engine: Engine, device_name: str, cores: int, ranks: int) -> Machine:
    """The device and the memory of a host, by one of its ranks, while `ranks` of them measure and share the cores."""
    log.info("Measuring matrix products, memory and additions")
    is_cpu = engine.xp is np
    memory = float(obtainable_bytes(engine.xp) or 0) or 1e9
    device = Device(device_name, {"fp32": 1.0}, memory, 1e9 * memory_gbytes(engine), 0.7, 1e-5)
    machine = Machine(
        "this machine",
        device,
        devices_per_node=RANKS if is_cpu else 1,
        within=LINKS["memory"],
        between=LINKS["1GbE"],
        exchange=FCAFFE,
        cores=cores if is_cpu else None,
        add_bandwidth=_add_bandwidth() if is_cpu else None,
    )
    peak = 1e9 * gemm_gflops(engine) * machine.slowdown(ranks)
    return replace(machine, device=replace(device, peak={"fp32": peak}))


def _add_bandwidth() -> float:
    """Bytes of a buffer that NumPy adds to another in a second."""
    a, b = aligned_zeros(np, FLOATS), aligned_zeros(np, FLOATS)
    taken = []
    for _ in range(PASSES):
        began = time.perf_counter()
        np.add(a, b, out=a)
        taken.append(time.perf_counter() - began)
    return a.nbytes / median(taken)


def measure_speed(machine: Machine, work: Work, engine: Engine, batch: int, ranks: int) -> Machine:
    """The machine with the images a second that one rank trains of a net, on data in memory. `ranks` of a host measure
    at once; what is written is for one that has all cores."""
    log.info(f"Measuring trainings of {work.name} at a batch of {batch}")
    net = with_batch(work.param, work.inputs, batch)
    param = pb.SolverParameter(net_param=net, base_lr=RATE, lr_policy="fixed", random_seed=1)
    param.snapshot_after_train = False
    given = PLAIN if work.solver is None else {name: getattr(work.solver, name) for name in RULE}
    for name, value in given.items():
        setattr(param, name, value)
    with log.quiet():
        training = Training(work.name, Solver(param, engine, "counter", on_nan="stop", timeline=Timeline()))
        try:
            take_turns([training], TURNS)
        finally:
            training.solver.close()
    seconds = median(turn.seconds for turn in training.turns)
    return replace(machine, speeds={work.name: batch / seconds * machine.slowdown(ranks)})


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


def merged(old: Machine, new: Machine) -> Machine:
    """The new measurements, and those of the old ones that they do not replace: of other nets, and of links that there
    were not now."""
    links: dict[str, Any] = {
        name: getattr(old, name)
        for name in ("within", "between")
        if "measured" in getattr(old, name).name and "measured" not in getattr(new, name).name
    }
    return replace(new, speeds={**old.speeds, **new.speeds}, **links)
