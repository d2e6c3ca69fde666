"""`fcaffe plan --calibrate`: measures this machine into a file."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.cli.bench import take_turns, training
from fcaffe.cli.engine import EngineFlags
from fcaffe.engines import Engine
from fcaffe.engines.memory import obtainable_bytes
from fcaffe.jobs.world import World, join
from fcaffe.plan.machine import FCAFFE, LINKS, Device, Link, Machine, read_machine, write_machine
from fcaffe.threads import available_cpus, ranks_on_host
from fcaffe.tools.profile import gemm_gflops, memory_gbytes

TURNS = 7  # whose median counts
SHORT, LONG = 64, 8 << 20  # bytes of the sums that tell a link's latency and bandwidth
RANKS = 1 << 10  # of a host: CPUs take any number
ACCESSES = 3  # of memory, for each byte that is added to another


def run(param: Any, name: str, engines: EngineFlags, out: str) -> int:
    """Measure, on all ranks at once if there are several, and write or complete the file `out`. `param`: of a solver
    that only steps, for the speed of its net of this `name`; None for no net. Raises FcaffeError."""
    old = read_machine(out) if os.path.isfile(out) and os.path.getsize(out) else None
    with join() as world:
        cores = available_cpus() if world.local_size == 1 else max(available_cpus(), _cores_of_host(world))
        machine = measure_machine(engines.create(), platform.machine() or "CPU", cores, ranks_on_host())
        if param is not None:
            world.watchdog.beat(f"measuring trainings of {name}")
            speed = _images_per_second(param, name, engines.create()) * machine.slowdown(ranks_on_host())
            machine = replace(machine, speeds={name: speed})
        if world.comm is not None:
            machine = measure_links(machine, world.comm, world.hosts, world.watchdog.beat)
        if world.rank == 0:
            write_machine(merged(old, machine) if old else machine, out)
            log.info(f"Wrote what was measured to {out}")
    return 0


def _images_per_second(param: Any, name: str, engine: Engine) -> float:
    """The speed at which this rank trains alone, as `fcaffe bench step` measures it."""
    log.info(f"Measuring trainings of {name}")
    with log.quiet():
        alone = training(name, param, World(), engine)
        try:
            take_turns([alone], TURNS)
        finally:
            alone.solver.close()
    return float(alone.result()["images_per_second"])


def _cores_of_host(world: World) -> int:
    """The number of cores that the ranks of this host may use together. Each rank may be bound to a part of them."""
    sets = world.comm.allgather((world.hosts[world.rank], sorted(os.sched_getaffinity(0))))
    return len({core for host, own in sets if host == world.hosts[world.rank] for core in own})


def measure_machine(engine: Engine, device_name: str, cores: int, ranks: int) -> Machine:
    """The device and the memory of a host, by one of its ranks, while `ranks` of them measure and share the cores."""
    log.info("Measuring matrix products and memory")
    is_cpu = engine.xp is np
    memory = float(obtainable_bytes(engine.xp) or 0) or 1e9
    bandwidth = 1e9 * memory_gbytes(engine)
    machine = Machine(
        "this machine",
        Device(device_name, {"fp32": 1e9 * gemm_gflops(engine)}, memory, bandwidth, efficiency=0.7, layer_seconds=1e-5),
        devices_per_node=RANKS if is_cpu else 1,
        within=LINKS["memory"],
        between=LINKS["1GbE"],
        exchange=FCAFFE,
        cores=cores if is_cpu else None,
        add_bandwidth=bandwidth / ACCESSES if is_cpu else None,
    )
    peak = machine.device.peak["fp32"] * machine.slowdown(ranks)
    return replace(machine, device=replace(machine.device, peak={"fp32": peak}))


def measure_links(machine: Machine, comm: Any, hosts: Sequence[str], beat: Callable[[str], None]) -> Machine:
    """The machine with the links between the ranks of `comm`, as the reductions use them. Collective.

    A sum by a server, between the first two ranks of a host or of two hosts, is two messages and an addition.
    """
    from fcaffe.tools.bench_reduce import measure

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
    """The new measurements, and the old ones of other nets and of links that were not measured now."""
    links: dict[str, Any] = {
        name: getattr(old, name)
        for name in ("within", "between")
        if "measured" in getattr(old, name).name and "measured" not in getattr(new, name).name
    }
    return replace(new, speeds={**old.speeds, **new.speeds}, **links)
