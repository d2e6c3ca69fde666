"""A rank's side of its agent: the heartbeats that it writes, how it finds the agent, and how it sees that it lives."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from fcaffe.errors import UsageError
from fcaffe.parallel import agent, records
from fcaffe.parallel.local_ranks import TABLE
from fcaffe.parallel.mpiexec import OF_A_RANK
from fcaffe.parallel.processes import JOB
from fcaffe.parallel.started import is_child_of_rank
from fcaffe.parallel.table import FAILED, LEAVING, SLOT, STARTING, WAITING, WORKING, Slot, create_table

DEFAULT_TIMEOUT = 300  # seconds
TURN = 1.0  # seconds that the first rank of a host has to say so before the others do
SECRET = "FCAFFE_SECRET"  # of the job; proves that a datagram between agents comes from one of them


class Watchdog:
    """Writes heartbeats; without a table nobody reads them, as for a single worker."""

    def __init__(self, rank: int = 0, table: Any = None, index: int = 0) -> None:
        self._rank = rank
        self._table = bytearray(SLOT.size) if table is None else table
        self._offset = index * SLOT.size
        self._beats = 0
        self._work = ("the start", -1)
        self.agent: subprocess.Popen[bytes] | None = None  # of this host, if this rank has started it
        self._write(STARTING, *self._work)

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
        return Slot(0, 0, 0, self._work[1], WORKING, self._work[0]).where()

    def leave(self, failed: bool = False) -> None:
        """This rank's end is near and no fault; or it has `failed`, and says itself how."""
        self._write(FAILED if failed else LEAVING, "the end", self._work[1])

    def _write(self, state: int, operation: str, iteration: int) -> None:
        self._beats += 1
        slot = Slot(self._rank, os.getpid(), self._beats, iteration, state, operation)
        self._table[self._offset : self._offset + SLOT.size] = slot.pack()


def of_started_rank(rank: int) -> Watchdog | None:
    """The watchdog of a rank that an agent has started; None if something else has."""
    if TABLE not in os.environ or is_child_of_rank(os.environ):
        return None
    return Watchdog(rank, mmap.mmap(int(os.environ[TABLE]), 0), rank)


def start_agent(world: Any, host: Any, hosts: Sequence[str], timeout: float, reports: bool, launched: bool) -> Watchdog:
    """Start the agent of this host for ranks that something else has started. Collective.

    `world` and `host` are the communicators of all ranks and of this host's; `hosts` has the host of each rank. The
    first rank of the host opens a table, a pipe from each rank to the agent, and one from the agent to the ranks; the
    others open the same by way of /proc. The ends of the pipes close when a process ends.
    """
    first = host.rank == 0
    table, pipes, lives = -1, [], (-1, -1)
    if first:
        table, pipes, lives = create_table(host.size), [os.pipe() for _ in range(host.size)], os.pipe()
    process, table_of, pipe_of, life = host.bcast((os.getpid(), table, [write for _, write in pipes], lives[0]))
    if not first:
        try:
            table = os.open(f"/proc/{process}/fd/{table_of}", os.O_RDWR)
            os.open(f"/proc/{process}/fd/{pipe_of[host.rank]}", os.O_WRONLY)  # held until this process ends
            life = os.open(f"/proc/{process}/fd/{life}", os.O_RDONLY)
        except OSError as problem:
            raise UsageError(
                f"this rank cannot reach rank 0 of its host, process {process} ({problem.strerror}): start the ranks "
                "of a host by one user and in one PID namespace"
            ) from problem
    watchdog = Watchdog(world.rank, mmap.mmap(table, 0), host.rank)
    watchdog.beat("the start")
    key = _key(world)
    host.Barrier()
    own, ends = None, [read for read, _ in pipes]
    if first and len(set(hosts)) > 1:  # on one host nothing is to be open to the network
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("", 0))
        own = (hosts[world.rank], socket.gethostname(), udp.getsockname()[1])
        ends.append(udp.detach())
    agents = [other for other in world.allgather(own) if other not in (None, own)]
    if first:
        setup = {
            **{"table": table, "pipes": ends[: host.size], "socket": ends[-1] if own else None, "agents": agents},
            **{"key": key.hex(), "number": world.rank, "hosts": hosts, "timeout": timeout},
            **{"reports": reports, "launched": launched},
        }
        outside = {name: value for name, value in os.environ.items() if not OF_A_RANK.match(name)}
        stdin = None if reports else subprocess.DEVNULL
        watchdog.agent = agent.spawn(setup, [table, *ends, lives[1]], outside, stdin=stdin)
        for handle in (*ends, lives[1], *(write for _, write in pipes[1:])):
            os.close(handle)
    number = host.bcast(watchdog.agent.pid if watchdog.agent else 0)
    name, turn = f"the agent (process {number}) on {hosts[world.rank]}", TURN * min(host.rank, 1)
    threading.Thread(target=_watch_agent, args=(life, name, launched, turn), daemon=True).start()
    return watchdog


def _key(world: Any) -> bytes:
    """The secret of this run between the agents; of the launcher's environment, or, if something else has started the
    ranks, one that rank 0 draws. Collective."""
    drawn = world.bcast(secrets.token_hex(32))
    return hashlib.sha256(f"{os.environ.get(SECRET, drawn)} {os.environ.get(JOB, '')}".encode()).digest()


def _watch_agent(lives: int, name: str, launched: bool, turn: float) -> None:
    """End this rank, and so the job, when the agent ends before it: nobody would notice any more that a rank hangs."""
    poll = select.poll()
    poll.register(lives, 0)  # the end of whoever holds the other end is told anyway
    poll.poll()
    time.sleep(turn)
    records.tell_fault(
        f"{name} died, which watches over the ranks there: killed, or crashed; so does the job", launched
    )
    os._exit(records.FATAL)
