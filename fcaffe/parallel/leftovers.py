"""What killed processes leave behind on a host: other processes of their job, and memory in /dev/shm.

The guard runs this too, without the rest of fcaffe, so it imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator

JOB = "FCAFFE_JOB"  # in the environment of every process that a launcher has started: the name of the run
FOLDER = "/dev/shm"
# MPICH's segments, those of its shared windows, and UCX's: of these MPICH removes the first only when it ends in order.
OF_MPI = re.compile(r"mpich_shm_|mpich_shar_tmp|ucx_shm_posix_")
# And the number of the process that made it, and the name of its run, if any: a folder by which ranks find their guard.
OF_RANKS = "fcaffe-ranks-"
STALE = 60  # seconds after which such a folder, which is removed at once, was left behind


def processes_of(name: str) -> list[int]:
    """The processes of this host that belong to the run of that name."""
    wanted = f"{JOB}={name}".encode()
    found = []
    for process in _processes():
        with contextlib.suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.append(process)
    return found


def remove_memory() -> list[str]:
    """Remove this user's segments of MPI that no process has mapped or open; returns their paths.

    A segment belongs to a living job as long as one of its processes has it open or mapped, and it has from the moment
    at which it is created.
    """
    dead = {path: number for path, number in _segments().items() if _has_no_writer(path)}
    if dead:
        used = _segments_in_use()  # by those who only read, of whom the kernel says nothing
        dead = {path: number for path, number in dead.items() if number not in used}
    for path in dead:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return sorted(dead)


def remove_folders(name: str = "") -> None:
    """Remove this user's folders of ranks that were killed before they had found their guard; those of the run of that
    `name`, which has ended, at once."""
    with contextlib.suppress(OSError), os.scandir(os.environ.get("TMPDIR") or "/tmp") as entries:
        for entry in entries:
            match = re.match(rf"{OF_RANKS}(\d+)-(\w*)-", entry.name)
            if match is None or os.path.exists(f"/proc/{match[1]}"):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and (
                    time.time() - status.st_mtime > STALE or (name and match[2] == name)
                ):
                    for file in os.listdir(entry.path):
                        os.unlink(f"{entry.path}/{file}")
                    os.rmdir(entry.path)


def _segments() -> dict[str, int]:
    """Paths and inode numbers of this user's."""
    found = {}
    with contextlib.suppress(OSError), os.scandir(FOLDER) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if OF_MPI.match(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid == os.geteuid():
                        found[entry.path] = status.st_ino
    return found


def _has_no_writer(path: str) -> bool:
    """Whether no process has the file mapped or open to write, of any container and any user, as the kernel knows: it
    gives a read lease only then."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
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


def _segments_in_use() -> set[int]:
    """The inode numbers of all files in the folder that processes have mapped or open, of those that can be seen."""
    used = set()
    for process in _processes():
        with contextlib.suppress(OSError), open(f"/proc/{process}/maps") as file:
            used |= {int(line.split()[4]) for line in file if f" {FOLDER}/" in line}
        with contextlib.suppress(OSError):
            for handle in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{process}/fd/{handle}").startswith(f"{FOLDER}/"):
                        used.add(os.stat(f"/proc/{process}/fd/{handle}").st_ino)
    return used


def _processes() -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdecimal())
