"""16 bits for the gradients that cannot hide: those of the first layers."""

from __future__ import annotations

import numpy as np

from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.state import State
from fcaffe.parallel.compression.sixteen_bit import SixteenBit
from fcaffe.parallel.reductions.reduction import Reduction


class Front(Reduction):
    """Slices within the first `compression.first` MB, and always the one in front, by that compression, all others by
    `rest`.

    Backward finishes the first layers' gradients last, and the next forward pass needs them first. A slice goes the one
    way or the other as a whole, so which gradients are in 16 bits follows from where they are cut: from sizes alone.
    What rides along goes with the first slice, as it is.
    """

    exact = False
    carries = True

    def __init__(self, compression: SixteenBit, rest: Reduction) -> None:
        super().__init__(compression.comm)
        self.first, self.rest = compression, rest
        self.name = self.compression = f"{compression.name}:first={compression.first:g}"
        self.counted = rest.counted
        self._floats = compression.first * (1 << 20) / 4

    def allocate(self, count: int) -> np.ndarray:
        gradients = self.rest.allocate(count)
        self.first.allocate(count)
        self.first.use(gradients)
        return gradients

    @silent_arithmetic
    def sum(self, buffer: np.ndarray) -> None:
        self.check(buffer)
        slice_ = self.first.slice_of(buffer)
        if slice_.start == 0 or slice_.stop <= self._floats:
            self.first.sum(buffer)
            return
        self.first.give_back(buffer)
        self.rest.sum(buffer)

    def total(self, buffer: np.ndarray) -> np.ndarray:
        self.sum(buffer)
        return buffer

    def carry(self, part: np.ndarray) -> None:
        self.first.carry(part)

    def state(self) -> State:
        return self.first.state()

    def restore_state(self, state: State) -> None:
        """That of another `first`, or of slices cut elsewhere, does as well: nothing that is kept is lost."""
        self.first.restore_state(state)

    @property
    def messages(self) -> int:
        return self.first.messages + self.rest.messages

    @property
    def bytes_sent(self) -> int:
        return self.first.bytes_sent + self.rest.bytes_sent

    def summary(self) -> str:
        rest = self.rest.summary()
        return f"{self.first.summary()}{f'; the rest: {rest}' if rest else ''}"

    def close(self) -> None:
        self.first.close()
        self.rest.close()
        super().close()
