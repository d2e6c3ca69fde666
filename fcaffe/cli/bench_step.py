"""`fcaffe bench step`: measures whole training iterations between live ranks."""

from __future__ import annotations

from typing import Any

from fcaffe import pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.cli.train import Reporter
from fcaffe.cli.workers import SharingFlags
from fcaffe.engines import Engine
from fcaffe.parallel.world import World
from fcaffe.solvers import Solver
from fcaffe.timeline import Timeline
from fcaffe.tools.step_bench import Training


def training(name: str, param: Any, world: World, engine: Engine, sharing: SharingFlags) -> Training:
    """A training as `fcaffe train` makes it of these flags. Collective."""
    timeline = Timeline()
    solver = Solver(
        param, engine, "counter", timeline=timeline, on_nan="stop", **sharing.for_solver(world, timeline, engine.xp)
    )
    solver.observers.append(Reporter(solver, world.watchdog))
    return Training(name, solver, world.watchdog)
