"""What all reductions of buffers on GPUs share. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.reduction import Reduction


class DeviceReduction(Reduction):
    """Adds up buffers that lie on each rank's device, arrays of `xp` (CuPy).

    Its device, and the stream that computes gradients (`work`), are those that are current where it is made. A sum
    begins after all that `work` has been given by then, and `work` goes on after it, whichever thread calls `sum`: in
    CuPy a thread has a current device and stream of its own. `add_up` is called for a single rank too.
    """

    on_device = True

    def __init__(self, comm: MPI.Intracomm, xp: Any) -> None:
        super().__init__(comm)
        self.xp = xp
        self.device = xp.cuda.Device()
        self.work = xp.cuda.get_current_stream()
        self.stream = xp.cuda.Stream(non_blocking=True)  # else it and the default stream would wait in turns
        self._ready = xp.cuda.Event(disable_timing=True)
        self._done = xp.cuda.Event(disable_timing=True)

    def sum(self, buffer: Array) -> None:
        self.check(buffer)
        if buffer.size:
            self.device.use()
            self.add_up(buffer)

    def total(self, buffer: Array) -> Array:
        self.sum(buffer)
        return buffer

    def wait(self) -> None:
        """Let the host wait until all sums are there."""
        self._done.synchronize()

    def check(self, buffer: Array) -> None:
        if not isinstance(buffer, self.xp.ndarray):
            raise UsageError(
                f"reduction {self.name} was made for buffers on a GPU, not for a {type(buffer).__module__} array; use "
                "shared, ring or auto for buffers of the CPU"
            )
        super().check(buffer)

    def follow_work(self) -> None:
        """What `stream` is given from now on comes after what `work` has been given so far."""
        self._ready.record(self.work)
        self.stream.wait_event(self._ready)

    def lead_work(self, stream: Any) -> None:
        """What `work` is given from now on comes after what `stream` has been given so far."""
        self._done.record(stream)
        self.work.wait_event(self._done)
