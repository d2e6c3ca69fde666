"""What a rank tells the guard of its host: what it does, in which iteration. And how it sees that the guard lives."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from fcaffe import log
from fcaffe.parallel import guard
from fcaffe.parallel.guard import FAILED, LEAVING, SECRET, SLOT, WAITING, WORKING
from fcaffe.parallel.leftovers import JOB, OF_RANKS

DEFAULT_TIMEOUT = 300  # seconds
UNGUARDED = 134  # exit code of a rank whose guard has died
TURN = 1.0  # seconds that the first rank of a host has to say so before the others do


class Watchdog:
    """Without a table it does nothing: a single worker has none to wait for, and none that wait for it."""

    def __init__(self, rank: int = 0, table: Any = None, index: int = 0) -> None:
        self._rank = rank
        self._table = bytearray(SLOT.size) if table is None else table
        self._offset = index * SLOT.size
        self._beats = 0
        self._work = ("the start", -1)
        self.guard: subprocess.Popen[bytes] | None = None  # of this host, if this rank has started it
        self._write(WORKING, *self._work)

    def beat(self, operation: str, iteration: int = -1) -> None:
        """This rank now does `operation`, which may take as long as the time-out allows."""
        self._work = (operation, iteration)
        self._write(WORKING, operation, iteration)

    @contextlib.contextmanager
    def waiting(self, operation: str, iteration: int | None = None) -> Iterator[None]:
        """In the body of the `with` other ranks are waited for, in this `operation` (of the last beat's iteration)."""
        self._write(WAITING, operation, self._work[1] if iteration is None else iteration)
        try:
            yield
        finally:
            self._write(WORKING, *self._work)

    @property
    def operation(self) -> str:
        """What this rank does, for a message."""
        name, iteration = self._work
        return name if iteration < 0 else f"{name} of iteration {iteration}"

    def leave(self, failed: bool = False) -> None:
        """This rank's end is near and no fault; or it has `failed`, and says itself how."""
        self._write(FAILED if failed else LEAVING, "the end", self._work[1])

    def _write(self, state: int, operation: str, iteration: int) -> None:
        self._beats += 1
        SLOT.pack_into(
            self._table, self._offset, self._rank, os.getpid(), self._beats, iteration, state, operation.encode()
        )


def start(world: Any, host: Any, hosts: Sequence[str], timeout: float, reports: bool) -> Watchdog:
    """Start the guard of this host's ranks. Collective.

    `world` and `host` are the communicators of all ranks and of this host's; `hosts` has the host of each rank. With
    `reports` the guard tells the launcher on standard output how far training is.
    """
    folder, pipes, lives = "", [], -1
    if host.rank == 0:
        folder = tempfile.mkdtemp(prefix=f"{OF_RANKS}{os.getpid()}-{os.environ.get(JOB, '')}-")
        with open(f"{folder}/table", "wb") as file:
            file.truncate(host.size * SLOT.size)
        for index in range(host.size):
            os.mkfifo(f"{folder}/{index}")
            pipes.append(os.open(f"{folder}/{index}", os.O_RDONLY | os.O_NONBLOCK))
        os.mkfifo(f"{folder}/guard")
        guard_lives = os.open(f"{folder}/guard", os.O_RDONLY | os.O_NONBLOCK)
        lives = os.open(f"{folder}/guard", os.O_WRONLY)  # the guard's end: open as long as it lives
    folder = host.bcast(folder)
    key = _key(world)
    with open(f"{folder}/table", "r+b") as file, _socket_between(hosts) as guards_socket:
        watchdog = Watchdog(world.rank, mmap.mmap(file.fileno(), 0), host.rank)
        os.open(f"{folder}/{host.rank}", os.O_WRONLY)  # held until this process ends
        if host.rank > 0:
            guard_lives = os.open(f"{folder}/guard", os.O_RDONLY | os.O_NONBLOCK)
        host.Barrier()
        port = guards_socket.getsockname()[1] if guards_socket else 0
        first = (hosts[world.rank], port) if host.rank == 0 and guards_socket else None
        guards = [other for other in world.allgather(first) if other not in (None, first)]
        if host.rank == 0:
            shutil.rmtree(folder)
            handles = {"table": file.fileno(), "pipes": pipes, "socket": None}
            passed = [file.fileno(), *pipes, lives]
            if guards_socket:
                handles["socket"] = guards_socket.fileno()
                passed.append(guards_socket.fileno())
            told = {"guards": guards, "hosts": hosts, "timeout": timeout, "reports": reports}
            watchdog.guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__],
                stdin=subprocess.PIPE,
                pass_fds=passed,
                cwd="/",
                start_new_session=True,  # mpiexec kills the ranks' sessions
            )
            assert watchdog.guard.stdin is not None
            with watchdog.guard.stdin as stdin:
                stdin.write(json.dumps({**told, **handles, "key": key.hex(), "number": world.rank}).encode())
            for handle in (*pipes, lives):
                os.close(handle)
        number = host.bcast(watchdog.guard.pid if watchdog.guard else 0)
    watch = threading.Thread(
        target=_watch_guard,
        args=(guard_lives, f"the guard (process {number}) on {hosts[world.rank]}", TURN * min(host.rank, 1)),
        name="watch over the guard",
        daemon=True,
    )
    watch.start()
    return watchdog


def _key(world: Any) -> bytes:
    """The secret of this run between the guards; of the launcher's environment, or, if something else has started the
    ranks, of rank 0's making. Collective."""
    made = world.bcast(secrets.token_hex(32))
    return hashlib.sha256(f"{os.environ.get(SECRET, made)} {os.environ.get(JOB, '')}".encode()).digest()


@contextlib.contextmanager
def _socket_between(hosts: Sequence[str]) -> Iterator[socket.socket | None]:
    """For the messages between guards; None where there is one host, on which nothing is to be open to the network."""
    if len(set(hosts)) == 1:
        yield None
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as guards_socket:
        guards_socket.bind(("", 0))
        yield guards_socket


def _watch_guard(lives: int, name: str, turn: float) -> None:
    """End this rank, and so the job, when the guard ends before it: nobody would notice any more that a rank hangs."""
    poll = select.poll()
    poll.register(lives, 0)  # the end of whoever holds the other end is told anyway
    poll.poll()
    time.sleep(turn)
    log.fatal(f"{name} died, which watches over the ranks there: killed, or crashed; so does the job")
    os._exit(UNGUARDED)
