"""That something comes to an end before long, also on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 10.0


@contextmanager
def soon() -> Iterator[None]:
    """What is done within takes no more than SECONDS of this process's computing.

    Ordinarily it takes some hundredths of one; what hangs, or grows with the square of its input, takes minutes. Time
    in which others have the cores does not count, and a machine that is four times as slow is no fault.
    """
    began = time.process_time()
    try:
        yield
    finally:  # an error may come late, too
        spent = time.process_time() - began
        assert spent < SECONDS, f"it took {spent:.1f} s of computing"
