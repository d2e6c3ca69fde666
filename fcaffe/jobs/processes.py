"""Forks processes, reads /proc for those of an agent and their state, and removes the shared memory that they leave."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fcaffe.jobs.silences import KILLING
from fcaffe.python_path import python

JOB = "FCAFFE_JOB"  # in the environment of every process of an agent: the agent's name
LAUNCHER = "FCAFFE_LAUNCHER"  # the process number of fcaffe's own launcher
AGENT = python("-m", "fcaffe.jobs.agent")  # the words that start one, before its settings in JSON
FOLDER = str(Path(__file__).parents[2])  # of the package
STOPPED, ON_DISK = "Tt", "D"  # states of a process: stopped by a signal or a debugger, and in a wait for a disk
TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that ask for the end
SHARED = "/dev/shm"
# MPICH's segments, those of its shared windows, and UCX's: of these MPICH removes the first only when it ends in order.
OF_MPI = re.compile(r"mpich_shm_|mpich_shar_tmp|ucx_shm_posix_")
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
PAUSE = 0.02  # seconds between two polls
PATIENCE = 0.3  # seconds in which memory may become free

_libc = ctypes.CDLL(None)


def _read(pid: int, name: str) -> str:
    """A file of /proc about a process; empty if the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}") as file:
        return file.read()
    return ""


def state_of(pid: int) -> str:
    """The letter by which Linux says whether a process runs, sleeps or is stopped; empty if it has ended."""
    return _read(pid, "stat").rpartition(")")[2].strip()[:1]


class Child:
    """A process that this one has forked.

    Attributes:
        returncode: As that of a Popen; None until `poll` has found that the process has ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def fork(name: str) -> Child | None:
    """Fork this process. Returns None in the child, which has this name, default signal handlers, and a session of its
    own, so it gets no Ctrl-C of the terminal. It dies with this process."""
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TO_END)  # until the child has handlers of its own
    pid = os.fork()
    if not pid:
        _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it died before
            os._exit(1)
        os.setsid()
        _libc.prctl(PR_SET_NAME, name.encode())
        for number in TO_END:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Child(pid) if pid else None


def waited_for_core(pid: int) -> float:
    """Seconds for which the first thread of a process was ready while others had the cores; 0 if unknown."""
    words = _read(pid, "schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


def processes_of(names: Iterable[str]) -> list[int]:
    """The processes of this host that belong to the agents of these names, without this process and its ancestors."""
    wanted = re.compile(rf"(^|\0){JOB}=({'|'.join(map(re.escape, names))})\0".encode())
    above, pid = set[str](), str(os.getpid())
    while pid.strip("0"):
        above.add(pid)
        pid = "".join(_read(int(pid), "stat").rpartition(")")[2].split()[1:2])
    found = []
    for process in set(filter(str.isdecimal, os.listdir("/proc"))) - above:
        with contextlib.suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
            if wanted.search(file.read()):
                found.append(int(process))
    return found


def end_processes(names: Iterable[str], turn: Callable[[], object]) -> list[int]:
    """Kill the processes of this host that belong to agents, and call `turn` until they have ended. Returns the ones
    that still exist after KILLING seconds."""
    names, end = list(names), time.monotonic() + KILLING
    while (left := processes_of(names)) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        turn()
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
