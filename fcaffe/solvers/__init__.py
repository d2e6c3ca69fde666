"""The training loop, its update rules, learning-rate policies and snapshots."""

import fcaffe.solvers.sgd  # noqa: F401 - registers it
from fcaffe.solvers.solver import Action, Solver, create_solver, register_solver, solver_types

__all__ = ["Action", "Solver", "create_solver", "register_solver", "solver_types"]
