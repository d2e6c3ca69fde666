"""DeviceReduction: base of all reductions of buffers on GPUs."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.reduction import Reduction


class DeviceReduction(Reduction):
    """Adds up buffers that lie on each rank's device, arrays of `xp` (CuPy).

    Its device, and the stream that computes gradients (`work`), are the current ones at its creation. `sum` begins
    after everything that is enqueued on `work`, and `work` continues after it.

    `start` enqueues sums that run beside `work`, one after the other; `work` waits for them from `finish` on. Another
    thread may call `start` than the one that uses `work` and calls `mark` and `finish`: in CuPy each thread has its own
    current device and stream.

    A subclass overrides `add_up`, which enqueues the sum on `stream`, also for a single rank.
    """

    on_device = True

    def __init__(self, comm: MPI.Intracomm, xp: Any) -> None:
        super().__init__(comm, xp)
        self.device = xp.cuda.Device()
        self.work = xp.cuda.get_current_stream()
        self.stream = xp.cuda.Stream(non_blocking=True)  # else it and the default stream would wait for each other
        self._done = xp.cuda.Event(disable_timing=True)
        self._is_open = False  # sums were started since the last `finish`

    def mark(self) -> Any:
        """An event after everything that is enqueued on `work` so far."""
        event = self.xp.cuda.Event()
        event.record(self.work)
        return event

    def start(self, buffer: Array, ready: Any = None) -> None:
        """Begin to sum a buffer after the event `ready`, or everything on `work` so far. `work` does not wait, and
        neither does the host unless `host_waits`."""
        self.check(buffer)
        if buffer.size:
            self.device.use()
            self.stream.wait_event(self.mark() if ready is None else ready)
            self._is_open = True
            self.add_up(buffer)

    def finish(self) -> None:
        """Let `work` wait for all sums that were started."""
        if self._is_open:
            self._is_open = False
            self._done.record(self.stream)
            self.work.wait_event(self._done)

    def sum(self, buffer: Array) -> None:
        self.start(buffer)
        self.finish()

    def check(self, buffer: Array) -> None:
        if not isinstance(buffer, self.xp.ndarray):
            raise UsageError(
                f"reduction {self.name} was made for buffers on a GPU, not for a {type(buffer).__module__} array; use "
                "shared, ring or auto for buffers of the CPU"
            )
        super().check(buffer)
