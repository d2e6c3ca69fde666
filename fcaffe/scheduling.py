"""How soon the kernel lets a thread run that has something to do."""

from __future__ import annotations

import ctypes
import platform
import sys

SLICE = 100_000  # nanoseconds, the least that Linux takes; its own choice is some milliseconds
# Numbers of the system calls sched_setattr and sched_getattr, for which the C library has no functions.
SYSTEM_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}


class _Attributes(ctypes.Structure):
    """The kernel's struct sched_attr."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def answer_promptly() -> None:
    """Ask for short slices of time for the calling thread, which waits for others most of the time.

    It gets no larger share of the cores for that, but what computes there need not end its own slice first. Linux does
    so from 6.12 on; elsewhere nothing changes.
    """
    calls = SYSTEM_CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return
    libc, attributes = ctypes.CDLL(None), _Attributes()
    attributes.size = ctypes.sizeof(attributes)
    set_attributes, get_attributes = calls
    if libc.syscall(get_attributes, 0, ctypes.byref(attributes), attributes.size, 0) == 0:
        attributes.flags, attributes.runtime = 0, SLICE
        libc.syscall(set_attributes, 0, ctypes.byref(attributes), 0)
