"""What the command line says when the system ends it in the middle of native code, where nothing can be raised."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from typing import Any

from fcaffe import log

_kept: list[Any] = []  # what C calls must not be freed


def begin() -> None:
    """From now on a bus error has a line in the log that says what was being read, and other faults have Python's stack
    on stderr. The process still dies of the signal. Only the command line calls this; a library leaves the signals of
    its host alone."""
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    if sys.platform != "linux" or _kept:
        return
    libc = ctypes.CDLL(None)
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_on_bus_error)
    _kept.extend((libc, handler))
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGBUS, ctypes.cast(handler, ctypes.c_void_p))


def _on_bus_error(number: int) -> None:
    """C calls this in the thread that read a mapped page whose file has been cut short. Python's own signal handlers
    run between two bytecodes, so never while one instruction fails over and over; a ctypes callback runs at once."""
    _kept[0].signal(number, None)  # a second fault, in here, ends the process at once
    database = sys.modules.get("fcaffe.data.database")  # nothing is being read where it has not been imported
    what = database.being_read() if database else None
    if what:
        message = f"Bus error while reading the {what}: a file of it was cut short meanwhile; copy or make it again"
    else:
        message = (
            "Bus error: a file that was mapped into memory was cut short, or shared memory has run out (df /dev/shm "
            "shows how much there is)"
        )
    log.fatal(message)
    os.kill(os.getpid(), number)
