"""Signals on their way from the launcher to the ranks.

mpiexec passes standard input on to rank 0, on whatever host that is; so that is where the launcher writes the numbers
of its signals. (mpiexec's own ways differ: MPICH's passes some signals on, Open MPI's kills the ranks instead.) One
rank is enough: the training loop agrees with the others on what to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import IO

from fcaffe import log

RELAYED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
LAUNCHER_GONE = 134
TURN = 2.0  # seconds


def send(number: int, stream: IO[bytes]) -> None:
    """From a signal handler of the launcher; `stream` is mpiexec's standard input."""
    with contextlib.suppress(OSError, ValueError):  # mpiexec has ended meanwhile
        os.write(stream.fileno(), b"%d\n" % number)


def listen(gone: Callable[[], None], stream: int = 0) -> None:
    """In rank 0: deliver what the launcher sends to this process, in a thread. If the launcher dies, `gone` is called
    and so does the job."""
    threading.Thread(target=_deliver, args=(gone, stream), name="signals from the launcher", daemon=True).start()


def _deliver(gone: Callable[[], None], stream: int) -> None:
    with open(stream, "rb", buffering=0, closefd=False) as lines:
        for line in lines:
            if line.strip().isdigit():
                os.kill(os.getpid(), int(line))
    time.sleep(TURN)  # the guard, if it is on the launcher's host, knows better where this can still be read
    gone()
    log.fatal("The process that started the ranks has died; so does the job")
    os._exit(LAUNCHER_GONE)
