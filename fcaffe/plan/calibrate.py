"""Measures this machine for its file: memory, additions, the update, the host's network, the links."""

from __future__ import annotations

import resource
import socket
import threading
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
from fcaffe.plan.machine import FCAFFE, Machine, plain
from fcaffe.plan.plan import ACCESSES
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.rules import create_rule
from fcaffe.tools.peaks import gemm_gflops, memory_gbytes

PASSES = 9  # of which the median counts
SHORT, MIDDLE, LONG = 64, 1 << 19, 8 << 20  # bytes of the sums that tell a link's latency, burst and bandwidth
SUMS = {SHORT: 100, MIDDLE: 5, LONG: 3}  # that are measured at a time
ENDS = 4  # of the two messages of a server's sum
FLOATS = 1 << 24  # of the arrays that are added and updated: more than caches hold
RANKS = 1 << 10  # of a host: CPUs take any number
ASLEEP = 0.01  # seconds that ranks without a part in a measurement sleep at a time
UPDATED = 1 << 16  # floats at a time, as the solver does


def measure_machine(engine: Engine, device_name: str, cores: int) -> Machine:
    """One rank's device, memory, additions, update and the host's network stack."""
    log.info("Measuring matrix products, memory, additions and the update")
    bandwidth = 1e9 * memory_gbytes(engine)
    device = Device(
        device_name,
        {"fp32": 1e9 * gemm_gflops(engine)},
        float(obtainable_bytes(engine.xp) or 0) or 1e9,
        bandwidth,
        efficiency=0.7,
        layer_seconds=1e-5,
    )
    is_cpu = engine.xp is np
    per_message, per_byte = _network_cpu() if is_cpu else (0.0, 0.0)
    return Machine(
        "this machine",
        device,
        devices_per_node=RANKS if is_cpu else 1,
        within=LINKS["memory"],
        between=LINKS["1GbE"],
        exchange=FCAFFE,
        cores=cores if is_cpu else None,
        cpu_per_message=per_message,
        cpu_per_byte=per_byte,
        add_bandwidth=_add_bandwidth() if is_cpu else None,
        update_bandwidth=_update_bandwidth(engine),
    )


def measure_links(machine: Machine, comm: Any, hosts: Sequence[str], beat: Callable[[str], None]) -> Machine:
    """The machine with the links between the ranks of `comm`, as the reductions use them. Collective; at rank 0.

    Sums by a server between the first two ranks of a host, or of two hosts, are two messages and an addition. What the
    cores of two hosts take for that, per message and per byte, replaces what was measured within one.
    """
    if len(set(hosts)) > 1 or not machine.cores:
        machine = replace(machine, devices_per_node=max(hosts.count(host) for host in hosts))
    pairs = {"within": _first_two(hosts, True), "between": _first_two(hosts, False)}
    for name, pair in pairs.items():
        if pair is None:
            continue
        part = comm.Split(0 if comm.rank in pair else 1, comm.rank)
        found = [(0.0, 0.0)] * len(SUMS)
        if comm.rank in pair:
            beat(f"measuring sums {name} hosts")
            found = [_server_sum(part, size) for size in SUMS]
        part.Free()
        others = comm.Ibarrier()
        while not others.Test():  # they leave the cores to the two
            time.sleep(ASLEEP)
        (short, short_cpu), (middle, _), (long, long_cpu) = comm.bcast(found, root=pair[0])
        adding = LONG / machine.add_bandwidth if machine.add_bandwidth else 0.0
        link = link_of(f"{name} (measured)", short, middle - adding * MIDDLE / LONG, long - adding)
        settings: dict[str, Any] = {name: link}
        if name == "between" and machine.cores:
            per_byte = max(0.0, long_cpu - short_cpu - adding) / (LONG - SHORT) / ENDS
            settings |= {"cpu_per_byte": per_byte, "cpu_per_message": max(0.0, short_cpu / ENDS - per_byte * SHORT)}
        machine = replace(machine, **settings)
    return machine


def link_of(name: str, short: float, middle: float, long: float) -> Link:
    """The link over which two messages of SHORT, MIDDLE and LONG bytes, one each way, take these seconds."""
    bandwidth = (LONG - MIDDLE) / max((long - middle) / 2, 1e-9)
    burst = MIDDLE - bandwidth * (middle - short) / 2
    if burst <= 0:  # messages have to get up to speed, rather
        burst, bandwidth = 0.0, (LONG - SHORT) / max((long - short) / 2, 1e-9)
    latency = max(short / 2 - SHORT / bandwidth, 1e-8)
    return Link(name, latency, bandwidth, "measured", min(burst, MIDDLE / 2))


def _server_sum(comm: Any, size: int) -> tuple[float, float]:
    """Seconds of a sum by a server, and of cores that its ranks take for it together."""
    from fcaffe.parallel.reductions import create_reduction

    reduction = create_reduction("server", comm)
    buffer = reduction.allocate(size // 4)
    count = SUMS[size]
    taken, cores = [], []
    try:
        for _ in range(PASSES + 1):
            comm.Barrier()
            began, before = time.perf_counter(), time.process_time()
            for _ in range(count):
                reduction.start(buffer, reduction.mark())
            reduction.finish()
            taken.append((time.perf_counter() - began) / count)
            cores.append(comm.allreduce(time.process_time() - before) / count)
    finally:
        reduction.close()
    return median(taken[1:]), median(cores[1:])


def _first_two(hosts: Sequence[str], same: bool) -> tuple[int, int] | None:
    for second, host in enumerate(hosts):
        for first in range(second):
            if (hosts[first] == host) == same:
                return first, second
    return None


def merged(old: Machine, new: Machine) -> Machine:
    """The new measurements, with those of the old that they do not take the place of: of other nets, of other numbers
    of ranks, and of links that there were not now."""
    fresh = {(plain(one.net), one.ranks) for one in new.measured}
    kept = [one for one in old.measured if (plain(one.net), one.ranks) not in fresh]
    links: dict[str, Any] = {
        name: getattr(old, name)
        for name in ("within", "between")
        if "measured" in getattr(old, name).name and "measured" not in getattr(new, name).name
    }
    return replace(new, measured=(*kept, *new.measured), **links)


def _add_bandwidth() -> float:
    """Bytes of a buffer that NumPy adds to another in a second."""
    a, b = aligned_zeros(np, FLOATS), aligned_zeros(np, FLOATS)
    return a.nbytes / _median(lambda: np.add(a, b, out=a))


def _update_bandwidth(engine: Engine) -> float:
    """Bytes of weights, gradients and history that SGD's rule goes over in a second."""
    w, g, history = (aligned_zeros(engine.xp, FLOATS) for _ in range(3))
    rule = create_rule(pb.SolverParameter(type="SGD", momentum=0.9), engine)
    blocks = [(slice(start, start + UPDATED), 0.0, 0.0) for start in range(0, FLOATS, UPDATED)]

    def update(block: slice, decay: float, rate: float) -> None:
        rule.decay_and_update(w[block], g[block], [history[block]], rate, decay)

    def work() -> None:
        engine.for_each(update, blocks)
        engine.synchronize()

    return w.nbytes * (ACCESSES + 2) / _median(work)


def _network_cpu() -> tuple[float, float]:
    """Seconds of a core for each message and for each byte, at one end of a TCP connection within this host."""
    few, many = _cpu_of_messages(1 << 10, 2000), _cpu_of_messages(1 << 20, 100)
    per_byte = max(0.0, (many - few) / ((1 << 20) - (1 << 10)))
    return max(0.0, few - per_byte * (1 << 10)) / 2, per_byte / 2


def _cpu_of_messages(size: int, count: int) -> float:
    """Seconds of cores that one message takes at both ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    message, buffer = b"x" * size, bytearray(size)

    def receive() -> None:
        left = size * count
        while left > 0:
            left -= receiver.recv_into(buffer)

    with sender, receiver:
        thread = threading.Thread(target=receive)
        before = resource.getrusage(resource.RUSAGE_SELF)
        thread.start()
        for _ in range(count):
            sender.sendall(message)
        thread.join()
        after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / count


def _median(work: Callable[[], Any]) -> float:
    work()
    taken = []
    for _ in range(PASSES):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return median(taken)
