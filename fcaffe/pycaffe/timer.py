"""pycaffe's Timer."""

from __future__ import annotations

import time

from fcaffe import log
from fcaffe.pycaffe import session


class Timer:
    """Measures the time from `start()` to `stop()`; `ms` has it in milliseconds, and stops a timer that still runs."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._seconds: float | None = None

    def start(self) -> None:
        if self._started is None:
            session.wait_for_device()
            self._started = time.perf_counter()

    def stop(self) -> None:
        if self._started is not None:
            session.wait_for_device()
            self._seconds, self._started = time.perf_counter() - self._started, None

    @property
    def ms(self) -> float:
        self.stop()
        if self._seconds is None:
            log.timer_never_run()
            return 0.0
        return self._seconds * 1000
