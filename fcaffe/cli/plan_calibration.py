"""`fcaffe plan --calibrate`: measures this machine into a file."""

from __future__ import annotations

import os
import platform

from fcaffe import log
from fcaffe.cli.engine import EngineFlags
from fcaffe.parallel.world import World, join
from fcaffe.plan.calibrate import measure_links, measure_machine, measure_speed, merged
from fcaffe.plan.machine_file import read_machine, write_machine
from fcaffe.plan.work import Work
from fcaffe.threads import available_cpus, ranks_on_host


def run(work: Work | None, batch: int, engines: EngineFlags, out: str) -> int:
    """Measure, on all ranks at once if there are several, and write or complete the file. Raises FcaffeError."""
    old = read_machine(out) if os.path.exists(out) else None
    with join() as world:
        cores = available_cpus() if world.local_size == 1 else max(available_cpus(), _cores_of_host(world))
        ranks = ranks_on_host()
        machine = measure_machine(engines.create(), platform.machine() or "CPU", cores, ranks)
        if work is not None:
            world.watchdog.beat(f"measuring trainings of {work.name}")
            machine = measure_speed(machine, work, engines.create(), batch, ranks)
        if world.comm is not None:
            machine = measure_links(machine, world.comm, world.hosts, world.watchdog.beat)
        if world.rank == 0:
            write_machine(merged(old, machine) if old else machine, out)
            log.info(f"Wrote what was measured to {out}")
    return 0


def _cores_of_host(world: World) -> int:
    """The cores of this host, of which its launcher may have given each rank a part only."""
    sets = world.comm.allgather((world.hosts[world.rank], sorted(os.sched_getaffinity(0))))
    return len({core for host, own in sets if host == world.hosts[world.rank] for core in own})
