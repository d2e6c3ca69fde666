"""The training loop, its update rules, learning-rate policies and snapshots."""

from fcaffe.solvers import adaptive, sgd  # noqa: F401 - registers them
from fcaffe.solvers.actions import Action
from fcaffe.solvers.batch_growth import grow_batch
from fcaffe.solvers.solver import Solver, create_solver, register_solver, solver_types

__all__ = ["Action", "Solver", "create_solver", "grow_batch", "register_solver", "solver_types"]
