"""GradientExchange: the sum of the gradients of all workers, as nets and solvers see it."""

from __future__ import annotations

from typing import Any

from fcaffe.engines.base import Pending
from fcaffe.engines.memory import aligned_zeros
from fcaffe.net.blob import Array
from fcaffe.net.layer import Held, State


class GradientExchange:
    """Adds the gradients of all workers, in place, while the backward pass still runs. This base is for one worker.

    `Net.backward` calls `begin`, and then `ready(start)` as soon as the flat gradients from offset `start` on are
    final. They are summed in buckets, from the end of the buffer to the front. The solver calls `finish` before it uses
    sums.

    An exchange that `applies_momentum` applies SGD's momentum and clipping itself, to each worker's own gradients. The
    solver gives it these numbers by `set_momentum`, which it calls for no other exchange.
    """

    applies_momentum: bool = False
    compression: str = ""  # the name of the scheme
    held: Held = Held.SUM
    on_streams: bool = True  # `begin`, `ready` and `finish` only enqueue work of a device: a CUDA graph may hold them

    def set_momentum(self, momentum: float, clip: float) -> None:
        """Set the momentum, and the L2 norm to clip to (negative: none)."""
        raise NotImplementedError

    def allocate(self, xp: Any, count: int) -> Array:
        """Return a zeroed flat float32 buffer for so many gradients, in the memory that this exchange sums fastest."""
        return aligned_zeros(xp, count)

    def begin(self, gradients: Array) -> None:
        """Begin an iteration's exchange of these flat gradients, or of rows of them; row 0 then receives the sum."""

    def ready(self, start: int) -> None:
        """Receive the gradients from offset `start` on, which are final."""

    def finish(self) -> None:
        """Wait for all sums. Raises the error of a sum that failed."""

    def wait_for(self, pending: Pending) -> None:
        """Let the host wait for a result that a device computes after sums. Raises the error of a sum that failed."""
        pending.wait()

    def state(self) -> State:
        """What later sums depend on. Arrays of floats are indexed like the flat gradients, and may be the live ones."""
        return {}

    def restore_state(self, state: State) -> None:
        """Continue from what `state` returned."""

    def close(self) -> None:
        """Free what was allocated, the gradients too. Collective."""

    def summary(self) -> str:
        """What the sums have taken, for the log; empty if there were none."""
        return ""
