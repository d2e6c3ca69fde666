"""The thread pool that decodes and transforms the images of a batch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fcaffe.threads import available_cpus

MOST_THREADS = 16  # more threads wait for the interpreter's lock
SHARES = 4  # parts of a batch per thread, which balance slow pictures


def decoding_threads() -> int:
    """The number of threads: one per CPU of this process, up to MOST_THREADS."""
    return min(available_cpus(), MOST_THREADS)


class Decoders:
    """A thread pool. OpenCV and NumPy release the interpreter's lock while they process pixels."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or decoding_threads()
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="decode") if self.threads > 1 else None

    def each(self, work: Callable[[int], None], count: int) -> None:
        """Call work(0) to work(count - 1) in any order. Raises the error of the lowest index that fails."""
        if self._pool is None:
            _run(work, range(count))
            return
        share = -(-count // (self.threads * SHARES))
        parts = [range(start, min(start + share, count)) for start in range(0, count, share or 1)]
        for _ in self._pool.map(lambda part: _run(work, part), parts):
            pass

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def _run(work: Callable[[int], None], part: range) -> None:
    for index in part:
        work(index)
