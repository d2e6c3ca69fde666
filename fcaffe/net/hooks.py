"""Hooks: what a script has called before and after each layer of a pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Hook = Callable[[int], None]  # gets the index of the layer in the net


@dataclass
class Hooks:
    """Called in the order in which they were added. A net that has any runs its layers one by one."""

    before_forward: list[Hook] = field(default_factory=list)
    after_forward: list[Hook] = field(default_factory=list)
    before_backward: list[Hook] = field(default_factory=list)
    after_backward: list[Hook] = field(default_factory=list)

    def in_forward(self) -> bool:
        return bool(self.before_forward or self.after_forward)

    def in_backward(self) -> bool:
        return bool(self.before_backward or self.after_backward)
