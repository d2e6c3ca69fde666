"""What an engine needs to know of a solver to update all parameters at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fcaffe.engines.base import EngineBase

Array = Any


class Part(NamedTuple):
    """A parameter's slice of the flat buffers, its weight decay and its multiplier of the rate."""

    span: slice
    decay: float
    lr_mult: float


class Settings(NamedTuple):
    """The numbers of a solver that its rule may need, by the names that they have in its prototxt."""

    momentum: float = 0.0
    momentum2: float = 0.0
    delta: float = 0.0
    rms_decay: float = 0.0


class PlainUpdate(EngineBase):
    """The update of all parameters by one operator, for engines that have it (`updates_at_once`)."""

    def prepare_update(self, parts: Sequence[Part], regularization: str) -> Any:
        """The table of parameters that update_all takes; the regularization is "L1" or "L2"."""
        raise NotImplementedError

    def set_step(self, rate: float, gradient_scale: float) -> None:
        """Set the rate of the next update_all and the factor of its gradients."""
        raise NotImplementedError

    def update_all(
        self,
        rule: str,
        table: Any,
        data: Array,
        diff: Array,
        history: Sequence[Array],
        settings: Settings,
    ) -> None:
        """Scale the gradients, regularise, and apply the rule of solver type `rule` to all parameters of the `table`.

        `set_step` has set the rate, which includes Adam's bias correction, and the factor of the gradients.
        """
        raise NotImplementedError
