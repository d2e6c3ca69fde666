"""Error messages for signals that end the process in native code, where no exception can be raised."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from typing import Any

from fcaffe import log

_kept: list[Any] = []  # referenced by C


def begin() -> None:
    """Log what was being read when a bus error or an abort ends the process, and Python's stack for other faults.

    The process still dies of the signal. Only the command line calls this: a library leaves its host's signals alone.
    """
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    if sys.platform != "linux" or _kept:
        return
    libc = ctypes.CDLL(None)
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_on_fault)
    _kept.extend((libc, handler))
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    for number in (signal.SIGBUS, signal.SIGABRT):
        libc.signal(number, ctypes.cast(handler, ctypes.c_void_p))


def _on_fault(number: int) -> None:
    """C calls this in the faulting thread: one that reads a page behind the end of a file, or fails an assertion.

    Python runs its own signal handlers between bytecodes, so never while one instruction fails over and over. A ctypes
    callback runs at once.
    """
    _kept[0].signal(number, None)  # a second fault, in here, ends the process at once
    database = sys.modules.get("fcaffe.data.database")  # not imported: no database is being read
    what = database.being_read() if database else None
    if what:
        log.fatal(
            f"{signal.strsignal(number)} while reading the {what}: it is damaged or cut short; copy or make it again"
        )
    elif number == signal.SIGABRT:
        faulthandler.dump_traceback(sys.__stderr__ or 2)
    else:
        log.fatal(
            "Bus error: a file that was mapped into memory was cut short, or shared memory has run out (df /dev/shm "
            "shows how much there is)"
        )
    os.kill(os.getpid(), number)
