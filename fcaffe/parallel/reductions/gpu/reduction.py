"""What all reductions of buffers on GPUs share. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.gpu.stream_times import StreamTimes
from fcaffe.parallel.reductions.reduction import Reduction


class DeviceReduction(Reduction):
    """Adds up buffers that lie on each rank's device, arrays of `xp` (CuPy).

    Its device, and the stream that computes gradients (`work`), are those that are current where it is made. A sum
    begins after all that `work` has been given by then, and `work` goes on after it.

    Sums that run beside `work` are begun by `start`, one after the other, as soon as their buffers are being written;
    `work` waits for them from `finish` on. `start` may be called by another thread than the one that gives `work` its
    work and calls `mark` and `finish`: in CuPy a thread has a current device and stream of its own.

    A subclass overrides `add_up`: it puts the sum on `stream`, also for a single rank.
    """

    on_device = True

    def __init__(self, comm: MPI.Intracomm, xp: Any) -> None:
        super().__init__(comm, xp)
        self.device = xp.cuda.Device()
        self.work = xp.cuda.get_current_stream()
        self.stream = xp.cuda.Stream(non_blocking=True)  # else it and the default stream would wait in turns
        self.ends_on = self.stream  # where `add_up` leaves the sum
        self.times = StreamTimes(xp)
        self._done = xp.cuda.Event(disable_timing=True)
        self._is_open = False  # sums were started since the last `finish`

    def mark(self) -> Any:
        """An event: what `work` has been given so far."""
        event = self.xp.cuda.Event()
        event.record(self.work)
        return event

    def start(self, buffer: Array, ready: Any = None) -> None:
        """Begin to sum a buffer after the event `ready`, or what `work` has been given so far; `work` goes on at once,
        and so does the host unless the reduction says that it waits."""
        self.check(buffer)
        if buffer.size:
            self.device.use()
            ready = self.mark() if ready is None else ready
            self.stream.wait_event(ready)
            self._is_open = True
            self.times.begin(self.stream, ready)
            self.add_up(buffer)

    def finish(self) -> None:
        """What `work` is given from now on comes after all sums that were started."""
        if self._is_open:
            self._is_open = False
            self._done.record(self.ends_on)
            self.work.wait_event(self._done)
            self.times.end(self.ends_on)

    def sum(self, buffer: Array) -> None:
        self.start(buffer)
        self.finish()

    def total(self, buffer: Array) -> Array:
        self.sum(buffer)
        return buffer

    def seconds_on_device(self) -> tuple[float, float]:
        self.times.collect()
        return self.times.seconds, self.times.exposed

    def check(self, buffer: Array) -> None:
        if not isinstance(buffer, self.xp.ndarray):
            raise UsageError(
                f"reduction {self.name} was made for buffers on a GPU, not for a {type(buffer).__module__} array; use "
                "shared, ring or auto for buffers of the CPU"
            )
        super().check(buffer)
