"""Reads /proc for the processes of a run and their state, and removes the shared memory that they leave."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from fcaffe.python_path import python

JOB = "FCAFFE_JOB"  # in the environment of every process that a launcher has started: the name of the run
LAUNCHER = "FCAFFE_LAUNCHER"  # the process number of fcaffe's own launcher
AGENT = python("-m", "fcaffe.jobs.agent")  # the words that start one, before its settings in JSON
FOLDER = str(Path(__file__).parents[2])  # of the package
DAEMONS = ("hydra_pmi_proxy", "pmi_proxy", "orted", "prted")  # of mpiexecs, on each host
STOPPED, ON_DISK = "Tt", "D"  # states of a process: stopped by a signal or a debugger, and in a wait for a disk
SHARED = "/dev/shm"
# MPICH's segments, those of its shared windows, and UCX's: of these MPICH removes the first only when it ends in order.
OF_MPI = re.compile(r"mpich_shm_|mpich_shar_tmp|ucx_shm_posix_")
PR_SET_PDEATHSIG = 1
PAUSE = 0.02  # seconds between two polls
PATIENCE = 0.3  # seconds in which memory may become free

_libc = ctypes.CDLL(None)


def _read(pid: int, name: str) -> str:
    """A file of /proc about a process; empty if the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}") as file:
        return file.read()
    return ""


def process_name(pid: int) -> str:
    return _read(pid, "comm").strip()


def state_of(pid: int) -> str:
    """The letter by which Linux says whether a process runs, sleeps or is stopped; empty if it has ended."""
    return _read(pid, "stat").rpartition(")")[2].strip()[:1]


def dies_with(parent: int) -> Callable[[], None]:
    """For the child's side of a fork by process `parent`: the kernel kills the child when the parent dies."""

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it died before
            os._exit(1)

    return prepare


def waited_for_core(pid: int) -> float:
    """Seconds for which the first thread of a process was ready while others had the cores; 0 if unknown."""
    words = _read(pid, "schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


def processes_of(name: str) -> list[int]:
    """The processes of this host that belong to the run of that name, or to a part of it, `name`.`part`."""
    wanted = re.compile(rf"(^|\0){JOB}={re.escape(name)}(\.\d+)?\0".encode())
    found = []
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
            if wanted.search(file.read()):
                found.append(int(process))
    return found


def kill_processes(name: str) -> list[int]:
    """Kill the processes of this host that belong to a run. Returns those that are still there."""
    for process in (left := processes_of(name)):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)
    return left


def remove_memory(patience: float = 0.0) -> None:
    """Remove this user's segments of MPI that no process has mapped or open to write.

    All ranks of a job map a segment to write, and have it open from the moment at which it is created. If segments with
    a writer are left, try again for `patience` seconds: a reader of /proc, such as `ps e`, keeps the memory of a
    process for some moments after its end.
    """
    end = time.monotonic() + patience
    while True:
        for path in filter(has_no_writer, segments()):
            with contextlib.suppress(OSError):
                os.unlink(path)
        if time.monotonic() >= end or not segments():
            return
        time.sleep(PAUSE)


def segments() -> list[str]:
    """Paths of this user's segments of MPI."""
    found = []
    with contextlib.suppress(OSError), os.scandir(SHARED) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                own = OF_MPI.match(entry.name) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                if own and entry.is_file(follow_symlinks=False):
                    found.append(entry.path)
    return found


def has_no_writer(path: str) -> bool:
    """Whether no process has the file mapped or open to write, of any container and any user: the kernel gives a read
    lease only then."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored, should somebody open it meanwhile
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
