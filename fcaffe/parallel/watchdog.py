"""What a rank tells the guard of its host: what it is doing, in which iteration."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from fcaffe.parallel import guard
from fcaffe.parallel.guard import FAILED, LEAVING, SLOT, WAITING, WORKING

DEFAULT_TIMEOUT = 300  # seconds


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
    folder, pipes = "", []
    if host.rank == 0:
        folder = tempfile.mkdtemp(prefix="fcaffe-ranks-")
        with open(f"{folder}/table", "wb") as file:
            file.truncate(host.size * SLOT.size)
        for index in range(host.size):
            os.mkfifo(f"{folder}/{index}")
            pipes.append(os.open(f"{folder}/{index}", os.O_RDONLY | os.O_NONBLOCK))
    folder = host.bcast(folder)
    token = world.bcast(secrets.token_hex(8))
    with open(f"{folder}/table", "r+b") as file, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as guards_socket:
        guards_socket.bind(("", 0))
        watchdog = Watchdog(world.rank, mmap.mmap(file.fileno(), 0), host.rank)
        os.open(f"{folder}/{host.rank}", os.O_WRONLY)  # held until this process ends
        host.Barrier()
        first = (hosts[world.rank], guards_socket.getsockname()[1]) if host.rank == 0 else None
        guards = [other for other in world.allgather(first) if other not in (None, first)]
        if host.rank == 0:
            shutil.rmtree(folder)
            handles = {"table": file.fileno(), "socket": guards_socket.fileno(), "pipes": pipes}
            told = {"guards": guards, "hosts": hosts, "timeout": timeout, "reports": reports, "token": token}
            watchdog.guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__],
                stdin=subprocess.PIPE,
                pass_fds=[file.fileno(), guards_socket.fileno(), *pipes],
                cwd="/",
                start_new_session=True,  # mpiexec kills the ranks' sessions
            )
            assert watchdog.guard.stdin is not None
            with watchdog.guard.stdin as stdin:
                stdin.write(json.dumps({**told, **handles}).encode())
            for pipe in pipes:
                os.close(pipe)
    return watchdog
