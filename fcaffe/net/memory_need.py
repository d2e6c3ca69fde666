"""What memory the training of a net takes, for the log before the run and for the error when there is too little."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe.engines.memory import obtainable_bytes, readable_size
from fcaffe.errors import NetError
from fcaffe.net.net import Net


@dataclass
class MemoryNeed:
    """Bytes: of parameters, of their gradients and the solver's histories, and of what one pass over `batch` samples
    takes at its peak: as it is run, and `with_recompute` (at most) as far as that has been found out."""

    parameters: int
    gradients: int
    histories: int
    activations: int
    with_recompute: int
    batch: int

    @classmethod
    def of(cls, net: Net, histories: int = 0, least: bool = False) -> MemoryNeed:
        """Of a net that is trained by a solver with so many histories; `least`: find out what recomputing would save,
        which for a deep net takes a second."""
        memory = net.memory()
        learnt = 0 if net.context.inference else 4 * net.parameters.count
        less = net.memory(recompute=True).peak if least else memory.peak
        return cls(memory.parameters, learnt, histories * learnt, memory.peak, less, net.batch_size)

    @property
    def fixed(self) -> int:
        """What does not depend on the batch."""
        return self.parameters + self.gradients + self.histories

    @property
    def total(self) -> int:
        return self.fixed + self.activations

    def __str__(self) -> str:
        text = (
            f"{readable_size(self.total)} = parameters {readable_size(self.parameters)} + gradients "
            f"{readable_size(self.gradients)} + histories {readable_size(self.histories)} + activations "
            f"{readable_size(self.activations)} for a batch of {self.batch}"
        )
        return text + (f" ({readable_size(self.with_recompute)} with --recompute)" if self.can_save else "")

    @property
    def can_save(self) -> bool:
        """Whether recomputing would be worth a word."""
        return self.with_recompute < 0.95 * self.activations

    def largest_batch(self, available: int, activations: int) -> int:
        """How many samples fit, where those of this batch take `activations`."""
        return max(0, math.floor((available - self.fixed) * self.batch / max(1, activations)))

    def advice(self, available: int) -> str:
        """What to do where only this many bytes can be had."""
        ways = []
        if (fits := self.largest_batch(available, self.activations)) > 0:
            ways.append(f"set batch_size to {min(fits, self.batch - 1)} or less, with iter_size to make up for it")
        if self.can_save and self.fixed + self.with_recompute <= available:
            ways.append(f"use --recompute, which takes {readable_size(self.fixed + self.with_recompute)}")
        elif self.can_save and (fits := self.largest_batch(available, self.with_recompute)) > 0:
            ways.append(f"use --recompute with a batch_size of {fits} or less")
        if not ways:
            what = "the parameters alone do" if self.fixed >= available else "one sample alone does"
            return f"{what} not fit: a larger device or a smaller net is needed"
        return " or ".join(ways)

    def error(self, problem: MemoryError | None, available: int | None) -> NetError:
        """For the user, in place of what an allocation raised, if one was tried. `available`: the bytes that this
        process could have."""
        message = f"out of memory: {'training' if self.gradients else 'running'} this net takes {self}"
        if available is None:
            return NetError(f"{message}; lower batch_size, or use --recompute ({problem})")
        if self.total <= available:
            others = "workspaces, data and other programs take the rest"
            return NetError(
                f"{message}, of {readable_size(available)} that this process can have; {others}: lower batch_size, or "
                f"use --recompute ({problem})"
            )
        return NetError(f"{message}, but this process can have {readable_size(available)}: {self.advice(available)}")


def check_memory(net: Net, histories: int = 0) -> MemoryNeed:
    """What a net and its solver's histories need. Raises NetError, which says what would fit, if that is not there.

    To be asked before they run: Linux grants more memory than there is, and kills the process later without a word. On
    a GPU the allocation itself fails.
    """
    need, xp = MemoryNeed.of(net, histories), net.context.engine.xp
    available = obtainable_bytes(xp) if xp is np else None
    if available is not None and need.total > available:
        raise MemoryNeed.of(net, histories, least=net.fuses).error(None, available)
    return need


@contextmanager
def memory_errors(net: Net, histories: int, xp: Any) -> Iterator[None]:
    """Turn a MemoryError, also CuPy's, into the NetError that says what would fit."""
    try:
        yield
    except MemoryError as problem:
        raise MemoryNeed.of(net, histories, least=True).error(problem, obtainable_bytes(xp)) from problem
