"""Measures a machine for its file: its device, and the links between ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.engines.memory import obtainable_bytes
from fcaffe.plan.devices import LINKS, Device, Link
from fcaffe.plan.machine import FCAFFE, Machine
from fcaffe.tools.peaks import gemm_gflops, memory_gbytes

SHORT, LONG = 64, 8 << 20  # bytes of the sums that tell a link's latency and bandwidth
RANKS = 1 << 10  # of a host: CPUs take any number
ACCESSES = 3  # of memory, for each byte that is added to another


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
