"""The warning that a net waits for its data."""

from __future__ import annotations

import time

from fcaffe import log
from fcaffe.data.decoding import decoding_threads

WINDOW = 20.0  # seconds of a measurement
SHARE = 0.05  # of the time that may be spent waiting
SILENCE = 600.0  # seconds between two warnings


class Starvation:
    """Measures how long a net waits for one reader, and warns if it is more than 5 % of the time."""

    def __init__(self, reader: str, depth: int) -> None:
        self.reader = reader
        self.depth = depth
        self._silent_until = 0.0
        self._begin(time.monotonic())

    def observe(self, waited: float, reading: float) -> None:
        """Record that the net waited `waited` seconds for a batch that took `reading` seconds to read."""
        self._waited += waited
        self._reading += reading
        self._batches += 1
        now = time.monotonic()
        elapsed = now - self._since
        if elapsed < WINDOW:
            return
        if self._waited > SHARE * elapsed and now >= self._silent_until:
            threads = decoding_threads()
            log.warning(
                f"{self.reader} starves the net, which waited for it {self._waited:.2g} of the last {elapsed:.2g} s: "
                f"a batch takes {self._reading / self._batches:.2g} s to read and decode with "
                f"{threads} thread{'s' * (threads > 1)}, one per CPU that this process may run on. Let it run on more "
                "CPUs, or store pictures that cost less (smaller ones, raw pixels, a faster disk); raise "
                f"data_param.prefetch ({self.depth}) if only some batches are slow"
            )
            self._silent_until = now + SILENCE
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._since = now
        self._waited = 0.0
        self._reading = 0.0
        self._batches = 0
