"""The memory that the training of a net takes, for the log before the run and for errors when there is too little."""

from __future__ import annotations

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
    takes at its peak."""

    parameters: int
    gradients: int
    histories: int
    activations: int
    batch: int
    can_recompute: bool  # --recompute would save memory

    @classmethod
    def of(cls, net: Net, histories: int = 0, nets: int = 1) -> MemoryNeed:
        """The need of `nets` nets over the same parameters, and of a solver with so many histories.

        Each net has gradients of its own.
        """
        memory, learnt = net.memory(), 0 if net.context.inference else 4 * net.parameters.count
        passes = nets * memory.peak, nets * net.batch_size, learnt > 0 and not net.arena.recompute
        return cls(memory.parameters, nets * learnt, histories * learnt, *passes)

    @property
    def fixed(self) -> int:
        """What does not depend on the batch."""
        return self.parameters + self.gradients + self.histories

    @property
    def total(self) -> int:
        return self.fixed + self.activations

    def __str__(self) -> str:
        return (
            f"{readable_size(self.total)} = parameters {readable_size(self.parameters)} + gradients "
            f"{readable_size(self.gradients)} + histories {readable_size(self.histories)} + activations "
            f"{readable_size(self.activations)} for a batch of {self.batch}"
        )

    def error(self, problem: MemoryError | None, available: int | None) -> NetError:
        """For the user, instead of what an allocation raised, if one was tried. `available`: the bytes that this
        process could have."""
        fits, recomputes, of = self.batch - 1, self.can_recompute, ""
        if available is not None:
            of = f", of {readable_size(available)} that this process can have"
            fits = min(fits, (available - self.fixed) * self.batch // max(1, self.activations))
            recomputes &= self.fixed < available
        ways = [f"set batch_size to {fits} or less, with iter_size to make up for it"] if fits > 0 else []
        ways += ["use --recompute"] if recomputes else []
        remedy = " or ".join(ways) or "a larger device or a smaller net is needed"
        what = "training" if self.gradients else "running"
        return NetError(
            f"out of memory: {what} this net takes {self}{of}; {remedy}{f' ({problem})' if problem else ''}"
        )


def check_memory(net: Net, histories: int = 0, nets: int = 1) -> MemoryNeed:
    """What a net and its solver's histories need. Raises NetError, which says what would fit, if there is less.

    Call it before the run, since Linux grants more memory than there is and kills the process later without a word.
    On a GPU the allocation itself fails.
    """
    need, xp = MemoryNeed.of(net, histories, nets), net.context.engine.xp
    available = obtainable_bytes(xp) if xp is np else None
    if available is not None and need.total > available:
        raise need.error(None, available)
    return need


@contextmanager
def memory_errors(net: Net, histories: int, xp: Any) -> Iterator[None]:
    """Turn a MemoryError, also CuPy's, into the NetError that says what would fit."""
    try:
        yield
    except MemoryError as problem:
        raise MemoryNeed.of(net, histories).error(problem, obtainable_bytes(xp)) from problem
