"""The ranks of a host as their agent sees them: what each does, and how long it may do so.

| state    | begins when                          | may be quiet for         | after that                     |
|----------|--------------------------------------|--------------------------|--------------------------------|
| starting | the agent has started the process    | the time-out and MARGIN  | the rank hangs: the job ends   |
| working, | it has found the other ranks         | the time-out             | the rank hangs: the job ends   |
| waiting  |                                      |                          |                                |
| ending   | it has reported the end of training  | the time-out, at least LEAVE | the rank is killed; no fault |
| failed   | it has reported its error            | GRACE                    | the rank is killed             |
| gone     | its process has ended                | -                        | -                              |

A rank that goes from starting, working or waiting to gone is a fault, unless a signal has asked it to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fcaffe.jobs import processes
from fcaffe.jobs.frames import Frames, Message, frame
from fcaffe.jobs.started import CHANNEL
from fcaffe.parallel.watchdog import STARTING, WAITING, WORKING, described

ENDING, FAILED, GONE = "ending", "failed", "gone"
MARGIN = 30.0  # seconds beyond the time-out for the ranks to load Python and fcaffe, and to find one another
LEAVE = 30.0  # seconds that threads of user code have at least, after the end of the training
SILENCE = 20.0  # seconds without a frame after which launcher and agents on different hosts count as lost
GRACE = 3.0  # seconds that processes have to end after others of their job
LIMITS: dict[str, Callable[[float], float]] = {  # seconds by state, from the time-out; 0: no limit
    STARTING: lambda timeout: timeout and timeout + MARGIN,
    WORKING: lambda timeout: timeout,
    WAITING: lambda timeout: timeout,
    ENDING: lambda timeout: max(timeout, LEAVE),
    FAILED: lambda timeout: GRACE,
    GONE: lambda timeout: 0.0,
}
LIVE = (STARTING, WORKING, WAITING)  # states in which the end of the process is a fault
LEAST = 0.1  # the share of the time that always counts: a rank that hangs in a loop waits for cores, too
LOADING = "loading fcaffe"
TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that ask for the end


class Slot(NamedTuple):
    """What a rank does, as its agent reports it to the launcher: `iteration` is -1 outside of training."""

    rank: int
    pid: int
    state: str
    operation: str
    iteration: int

    def where(self) -> str:
        return described(self.operation, self.iteration)


@dataclass(eq=False)
class Rank:
    """A rank of this host, and the agent's end of its channel. `quiet` are the seconds since it did something new."""

    number: int
    process: subprocess.Popen[bytes]
    socket: socket.socket
    frames: Frames = field(default_factory=Frames)
    state: str = STARTING
    operation: str = LOADING
    iteration: int = -1
    quiet: float = 0.0

    @property
    def slot(self) -> Slot:
        return Slot(self.number, self.process.pid, self.state, self.operation, self.iteration)

    def enter(self, state: str, operation: str, iteration: int) -> None:
        self.state, self.operation, self.iteration, self.quiet = state, operation, iteration, 0.0

    def messages(self) -> Iterator[Message | str]:
        """What the rank has sent since the last call."""
        with contextlib.suppress(OSError):
            while data := self.socket.recv(1 << 16):
                yield from self.frames.feed(data)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()


def start_rank(
    number: int,
    program: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    order: Message,
    output: tuple[int, int],
) -> Rank:
    """Start a process as this rank and send it the order; it writes into the descriptors `output`."""
    ours, theirs = socket.socketpair()
    with theirs:
        descriptor = theirs.fileno()
        process = subprocess.Popen(
            program,
            env={**environment, "PMI_FD": str(descriptor), CHANNEL: str(descriptor)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output[0],
            stderr=output[1],
            pass_fds=[descriptor],
            start_new_session=True,  # the terminal's Ctrl-C goes to the launcher alone
            preexec_fn=processes.dies_with(os.getpid()),
        )
    ours.settimeout(GRACE)
    with contextlib.suppress(OSError):
        ours.sendall(frame(order))
    ours.setblocking(False)
    return Rank(number, process, ours)


class Clock:
    """Counts for how long each rank has been quiet: only time in which the ranks could run.

    Linux tells for how long a process was ready while others had the cores; that is subtracted, up to nine tenths. So a
    loaded machine ends no job. Time in which this process was stopped does not count either.
    """

    def __init__(self) -> None:
        self._waits: dict[int, float] = {}

    def tick(self, ranks: Sequence[Rank], seconds: float) -> None:
        """Note that so many seconds have passed."""
        live = [rank for rank in ranks if rank.state != GONE]
        busy = [rank.process.pid for rank in live if rank.state in (STARTING, WORKING)]
        before = self._waits
        self._waits = {pid: processes.waited_for_core(pid) for pid in busy or [rank.process.pid for rank in live]}
        starved = max((now - before.get(pid, now) for pid, now in self._waits.items()), default=0.0)
        for rank in live:
            rank.quiet += max(seconds - starved, LEAST * seconds)


def overdue(rank: Rank, timeout: float) -> bool:
    return 0 < LIMITS[rank.state](timeout) < rank.quiet
