"""Update rules: how weights follow from gradients, one class each. A file of rules is imported here to be known."""

from fcaffe.solvers.rules import adaptive, sgd  # noqa: F401  (they register themselves)
from fcaffe.solvers.rules.rule import Rule, create_rule, register_rule, solver_types

__all__ = ["Rule", "create_rule", "register_rule", "solver_types"]
