"""How gradients of several workers become one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.engines.engine import Pending
from fcaffe.engines.memory import aligned_zeros
from fcaffe.net.blob import Array
from fcaffe.net.state import Held, State


class GradientExchange:
    """Adds the gradients of all workers up, in place, while the backward pass still runs. This base is for one worker.

    The solver calls `begin` before the last backward pass of an iteration, `ready(start)` as soon as everything from
    `start` on in the flat buffer is final, and `finish` before it uses the sums: of all, or of those before an offset.

    One that `takes_momentum` applies SGD's momentum and clipping itself, to each worker's own gradients; before it is
    used it gets to know them by `take_momentum`, which no other is asked for.
    """

    takes_momentum: bool = False
    compression: str = ""  # the name of the scheme by which it compresses, if it does
    held: Held = Held.SUM  # how the workers hold the state
    riders: int = 0  # how many numbers of each worker can travel with the gradients, see `send_along`
    exposed: float = 0.0  # seconds for which the training has waited for sums
    on_streams: bool = True  # `begin`, `ready`, `finish` only give a device work, so they may be in a CUDA graph

    def take_momentum(self, momentum: float, clip: float) -> None:
        """The momentum, and the L2 norm to clip to (negative: none), that it is to apply."""
        raise NotImplementedError

    def allocate(self, xp: Any, count: int, riders: int = 0) -> Array:
        """A zeroed float32 buffer for the gradients, where this exchange likes it best. `riders`: how many numbers are
        to travel with them, if it can do that."""
        return aligned_zeros(xp, count)

    def send_along(self, numbers: np.ndarray) -> None:
        """Before `begin`: up to `riders` float64 of this worker are to go to all others together with the gradients."""
        raise NotImplementedError

    def arrived(self) -> np.ndarray:
        """After `finish`: what all workers have sent along, (workers, riders) float64, exactly as they have sent it."""
        raise NotImplementedError

    def begin(self, gradients: Array) -> None:
        pass

    def ready(self, start: int) -> None:
        pass

    def finish(self, stop: float = math.inf) -> None:
        """Wait for the sums of all buckets that begin before offset `stop`."""

    @property
    def final_until(self) -> float:
        """The offset up to which gradients are sums by now."""
        return math.inf

    @property
    def seconds(self) -> float:
        """What sums have taken so far."""
        return 0.0

    def wait_for(self, pending: Pending) -> None:
        """Let the host wait for something that comes after sums on a device. Raises what has gone wrong with these."""
        pending.wait()

    def state(self) -> State:
        """What later sums depend on, such as the residuals of a compression. Arrays of floats lie like the flat
        gradients, may end earlier, as they do on all workers alike, where zeros would follow, and may be the live ones.
        """
        return {}

    def restore_state(self, state: State) -> None:
        """Go on from what `state` gave."""

    def close(self) -> None:
        """Give back what was allocated, after which no gradients may be touched. All workers must call this."""

    def summary(self) -> str:
        """For the log: what it has taken; empty if there was nothing to do."""
        return ""
