"""Rule: the contract of all update rules, and the registry of the names that a solver's `type` takes.

A rule sees slices of the flat buffers and nothing of nets, ranks or schedules: those are `fcaffe.solvers.update`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from fcaffe.engines import Engine
from fcaffe.errors import SolverError
from fcaffe.net.blob import Array


class Rule:
    """Lowers weights by what follows from their gradients and from `histories` arrays of the parameters' size.

    A subclass overrides `update`. One whose rule the engines' `update_all` knows by the solver's type says
    `all_at_once`; any other is applied slice by slice, on GPUs too.
    """

    histories: ClassVar[int] = 1
    all_at_once: ClassVar[bool] = False

    def __init__(self, param: Any, engine: Engine) -> None:
        self.param = param
        self.engine = engine
        self.xp = engine.xp

    def check(self) -> None:
        """Raise SolverError for parameters that the rule cannot do with."""

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        """Lower the weights `w`, by their gradients `g`; afterwards `g` holds what `w` was lowered by.

        All are flat float32 slices of one parameter; `histories` keep from iteration to iteration what the rule writes.
        The rate and the other numbers are rounded to float32 first, as Caffe's are.
        """
        raise NotImplementedError

    def decay_and_update(self, w: Array, g: Array, histories: Sequence[Array], rate: float, decay: float) -> None:
        """`update`, after the gradient of the regularisation has been added."""
        if decay:
            slope = w if self.param.regularization_type == "L2" else self.xp.sign(w)
            g += self.xp.float32(decay) * slope
        self.update(w, g, histories, rate)

    def correction(self, iteration: int) -> float:
        """What the rate of each parameter is multiplied by at this iteration."""
        return 1.0

    def with_momentum_applied(self) -> Rule:
        """The rule for gradients to which a compression has applied SGD's momentum. SolverError if there is none."""
        raise SolverError(
            f"solver type {self.param.type} does not go with a compression that applies the momentum of SGD itself "
            '(topk): use type: "SGD", or another compression'
        )


_registry: dict[str, type[Rule]] = {}
RuleClass = TypeVar("RuleClass", bound=type[Rule])


def register_rule(solver_type: str) -> Callable[[RuleClass], RuleClass]:
    """Class decorator: make this class the rule for `type: "solver_type"`."""

    def add(cls: RuleClass) -> RuleClass:
        _registry[solver_type] = cls
        return cls

    return add


def solver_types() -> list[str]:
    return sorted(_registry)


def create_rule(param: Any, engine: Engine) -> Rule:
    """The rule that a SolverParameter names, its parameters checked. Raises SolverError."""
    if param.type not in _registry:
        raise SolverError(f"unknown solver type '{param.type}'; known ones: {', '.join(solver_types())}")
    rule = _registry[param.type](param, engine)
    rule.check()
    return rule
