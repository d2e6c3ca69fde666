"""The ranks of a host, as their agent sees them.

| state    | begins when                            | may be quiet for             | after that                       |
|----------|----------------------------------------|------------------------------|----------------------------------|
| loading  | the agent has forked the process       | -                            | -                                |
| training | the training begins its first batch    | the time-out (`hang_message`)| the job ends                     |
| done     | the rank has reported the end          | LEAVE, at least the time-out | the rank is killed, without blame |

The end of a process that is loading or training is a fault, unless the rank has reported its error, or a signal has
asked it to end.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fcaffe.jobs import processes
from fcaffe.jobs.channel import Channel, Status
from fcaffe.jobs.frames import Lines, Message
from fcaffe.jobs.loop import Link, Loop, Stream, two_of
from fcaffe.parallel.watchdog import DONE, LOADING, TRAINING, Doing

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
LEAST = 0.1  # the share of the time that always counts: a rank that hangs in a loop waits for cores, too


class Slot(NamedTuple):
    """What a rank does, as its agent reports it to the launcher. `quiet` are the seconds since it did something new."""

    rank: int
    pid: int
    doing: Doing
    stopped: bool
    quiet: float


@dataclass(eq=False)
class Rank:
    """A rank of this host, with the agent's ends of its channel and of its socket for PMI-1.

    Attributes:
        failed: It has reported its error.
        gone: Its process has ended.
    """

    number: int
    process: processes.Child
    link: Link
    pmi: Stream
    status: Status
    doing: Doing = field(default_factory=Doing)
    failed: bool = False
    gone: bool = False
    stopped: bool = False
    quiet: float = 0.0

    @property
    def slot(self) -> Slot:
        return Slot(self.number, self.process.pid, self.doing, self.stopped, round(self.quiet, 1))

    def look(self) -> None:
        """Read what the rank does."""
        if self.doing.state != DONE and (doing := self.status.read()):
            self.doing, self.quiet = doing, 0.0

    def close(self) -> None:
        """After the end of the process: read its last messages, and close its links."""
        self.gone = True
        self.link.drain()
        self.look()
        self.link.close()
        self.pmi.close()

    @property
    def crashed(self) -> bool:
        """Whether a signal of the processor has ended it, which may follow from the loss of another rank."""
        return -(self.process.poll() or 0) in CRASHES

    def cause_of_death(self, who: str) -> Message:
        """The cause of the job's end, if this rank has ended too early."""
        code = self.process.poll() or 0
        if -code in processes.TO_END:
            return {"signal": -code}
        if self.doing.state == LOADING:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            return {"fault": True, "message": f"{who} {how}, before the training; what it said stands above"}
        how = f"it ended with exit code {code}" if code >= 0 else "killed, or crashed outside of Python"
        return {"fault": True, "message": f"{who} died in {self.doing}: {how}"}


def fork_rank(
    loop: Loop,
    number: int,
    variables: Mapping[str, str],
    output: tuple[int, int],
    hear: Callable[[int, int, bytes], object],
    hear_pmi: Callable[[int, int, bytes], object],
) -> Rank | Channel:
    """Fork this process into a rank with these environment variables besides, which prints into the pipes `output`.

    Returns the rank's Channel in the new process, where the loop is closed. The agent's `hear` and `hear_pmi` are
    called with the rank and each part of what it sends to the agent and to the PMI server.
    """
    (ours, channel), (server, pmi) = socket.socketpair(), socket.socketpair()
    status, nothing = Status(), os.open(os.devnull, os.O_RDONLY)
    process = processes.fork(f"fcaffe rank {number}" if number < 1000 else f"fcaffe {number}")  # 15 letters at most
    if process is None:
        loop.close()
        for source, target in ((nothing, 0), (output[0], 1), (output[1], 2)):
            os.dup2(source, target)
            os.close(source)
        ours.close()
        server.close()
        os.environ |= {**variables, "PMI_FD": str(pmi.detach())}
        return Channel(channel, status)
    os.close(nothing)
    channel.close()
    pmi.close()
    link = Link(loop, *two_of(ours), lambda kind, content: hear(number, kind, content))
    stream = Stream(loop, *two_of(server), lambda kind, content: hear_pmi(number, kind, content), Lines())
    return Rank(number, process, link, stream, status)


class Clock:
    """Counts for how long each rank has been quiet: only time in which it could run.

    Linux tells for how long a process was ready while others had the cores; that is subtracted, up to nine tenths. So a
    loaded machine ends no job. Nor does time count in which a rank waits for a disk, as in a snapshot to a slow one.
    """

    def __init__(self) -> None:
        self._waited: dict[int, float] = {}

    def tick(self, ranks: Sequence[Rank], seconds: float) -> None:
        """Note that so many seconds have passed."""
        states = {rank: processes.state_of(rank.process.pid) for rank in ranks}
        busy = [rank.process.pid for rank in ranks if not rank.doing.waits]
        before = self._waited
        self._waited = {pid: processes.waited_for_core(pid) for pid in busy or [rank.process.pid for rank in ranks]}
        starved = max((now - before.get(pid, now) for pid, now in self._waited.items()), default=0.0)
        for rank, state in states.items():
            rank.stopped = state in processes.STOPPED and bool(state)
            if state != processes.ON_DISK:
                rank.quiet += max(seconds - starved, LEAST * seconds)
            rank.look()


def names(slots: Sequence[Slot], hosts: Sequence[str]) -> str:
    """The ranks and their hosts, for a message."""
    groups: dict[str, list[Slot]] = {}
    for slot in slots:
        groups.setdefault(hosts[slot.rank], []).append(slot)
    words = []
    for host, group in groups.items():
        if len(group) == 1:
            words.append(f"rank {group[0].rank} (process {group[0].pid}) on {host}")
        else:
            words.append(f"ranks {numbers([slot.rank for slot in group])} on {host}")
    return " and ".join(words)


def numbers(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 16 else f"{ranks[0]}, {ranks[1]} ... {ranks[-1]}"


def hang_message(slots: Sequence[Slot], hosts: Sequence[str], timeout: float) -> str:
    """The message about the ranks that hang; empty if none does.

    A rank that waits for others does not hang, unless all ranks wait. A rank that loads may take its time, and others
    may wait for it.

    Args:
        slots: All ranks of the job, as they were last heard of.
        hosts: The host of each rank.
        timeout: In seconds; 0: none hangs.
    """
    late = [slot for slot in slots if slot.doing.state == TRAINING and 0 < timeout < slot.quiet]
    stuck = [slot for slot in late if slot.stopped] or [slot for slot in late if not slot.doing.waits]
    if not stuck and len(late) == len(hosts):
        stuck = [slot for slot in late if slot.doing.iteration == min(one.doing.iteration for one in late)]
    if not stuck:
        return ""
    waiting = sorted(slot.rank for slot in slots if slot.doing.waits and slot not in stuck)
    return (
        f"{names(stuck, hosts)} did not come out of {stuck[0].doing} within {timeout:g} s (--timeout)"
        + (": stopped by a signal (SIGSTOP)" if stuck[0].stopped else "")
        + (f"; waiting for it: {numbers(waiting)}" if waiting else "")
    )
