"""Solvers: the loop, update rules, learning-rate policies, snapshots."""

from fcaffe import layers  # noqa: F401 - declares the types of layers
from fcaffe.solvers.control import Action, Observer
from fcaffe.solvers.rules import solver_types
from fcaffe.solvers.solver import Solver

__all__ = ["Action", "Observer", "Solver", "solver_types"]
