"""`fcaffe plan --calibrate`: measures this machine into a file."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from typing import Any

from fcaffe import log
from fcaffe.cli.bench_step import training
from fcaffe.cli.engine import EngineFlags
from fcaffe.engines import Engine
from fcaffe.parallel.world import World, join
from fcaffe.plan.calibrate import measure_links, measure_machine, merged
from fcaffe.plan.machine_file import read_machine, write_machine
from fcaffe.threads import available_cpus, ranks_on_host
from fcaffe.tools.step_bench import take_turns

TURNS = 7  # whose median counts


def run(param: Any, name: str, engines: EngineFlags, out: str) -> int:
    """Measure, on all ranks at once if there are several, and write or complete the file. Raises FcaffeError.

    Args:
        param: The parameters of a solver that only steps, for the speed of its net; None for no net.
        name: The net's name.
        engines: What computes.
        out: The file.
    """
    old = read_machine(out) if os.path.exists(out) else None
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
    """What this rank trains alone, as `fcaffe bench step` measures it."""
    log.info(f"Measuring trainings of {name}")
    with log.quiet():
        alone = training(name, param, World(), engine)
        try:
            take_turns([alone], TURNS)
        finally:
            alone.solver.close()
    return float(alone.result()["images_per_second"])


def _cores_of_host(world: World) -> int:
    """The cores of this host, of which its launcher may have given each rank a part only."""
    sets = world.comm.allgather((world.hosts[world.rank], sorted(os.sched_getaffinity(0))))
    return len({core for host, own in sets if host == world.hosts[world.rank] for core in own})
