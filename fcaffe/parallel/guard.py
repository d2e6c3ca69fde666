"""The guard of the ranks of one host: names whoever of the job dies or hangs, and ends the ranks.

A process of its own (`watchdog.py` starts it), because it must outlive the ranks: when one of them is killed, mpiexec
kills the others before they could say which. And because a rank can hang with Python's lock held, and needs its cores
for other things. It imports nothing but the standard library, so that it starts at once and stays small. The ranks in
turn watch the guard, see `watchdog.py`.

What it knows of its ranks is in a table that they share with it, one slot each; once a second the guards of all hosts
send one another their tables. A rank lives as long as its count of beats changes. For how long it has not is measured
by the guard's own ticks, so a job that a batch system suspends and resumes has not hung; and without the time for which
others had the cores, so neither has one on a loaded machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import json
import mmap
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

# A rank's slot: rank, process, beats, iteration, state, the operation's name.
SLOT = struct.Struct("<qqqqq88s")
FAULT = struct.Struct("<dq")  # when, and a rank of the host: what a guard that has found a fault tells the others
HEADER = struct.Struct("<qqc")  # of a message between guards: who sends it, the how-many-eth it is, and what is in it
SLOTS_INSIDE, FAULT_INSIDE = b"s", b"f"
SEAL = 32  # bytes of the HMAC at the end of a message
WORKING, WAITING, LEAVING, FAILED, STOPPED = range(5)

TICK = 0.25  # seconds
REPORT = 1.0  # seconds between two reports to the other guards and to the launcher
HEARING = 0.3  # seconds to hear whether the guard of another host has found the fault before
SILENCE = 3.5  # seconds without a report after which a host counts as cut off
MARK = b"\x1efcaffe "  # begins a report to the launcher, on standard output; `job.py` takes them out
LEAST = 0.1  # the share of the time that always counts: a rank that polls for ever, since it hangs, wants cores too
GRACE = 3.0  # seconds that a host's MPI daemon has to end after its ranks
DAEMONS = ("hydra_pmi_proxy", "pmi_proxy", "orted", "prted")
STARTERS = ("mpiexec", "mpiexec.hydra", "mpirun", "orterun", "prterun")
PF_EXITING, PF_SIGNALED = 4, 0x400  # among a process's flags, as Linux shows them
SIGNAL_OF_STATUS = 0x7F
PIDFD_GETFD = 438  # Linux's number of this system call, on every processor
LAUNCHER_NAME = "fcaffe's launcher"
LAUNCHER = "FCAFFE_LAUNCHER"  # the process number of fcaffe's own launcher
SECRET = "FCAFFE_SECRET"  # of the job; proves that a message between guards comes from one of them


class Slot(NamedTuple):
    rank: int
    pid: int
    beats: int
    iteration: int
    state: int
    operation: str

    def where(self) -> str:
        """What it does, for a message."""
        return self.operation if self.iteration < 0 else f"{self.operation} of iteration {self.iteration}"


def read_slots(table: bytes | mmap.mmap) -> list[Slot]:
    slots = []
    for rank, pid, beats, iteration, state, name in SLOT.iter_unpack(table):
        slots.append(Slot(rank, pid, beats, iteration, state, name.rstrip(b"\0").decode(errors="replace")))
    return slots


class Process:
    """A process that is no child of ours."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.name = process_name(pid)
        self.began = _stat(pid)[19:20]  # against another process that gets the same number later

    def gone(self) -> bool:
        now = _stat(self.pid)
        if now or self.began:
            return now[19:20] != self.began or (now[0] == "Z" and int(now[17]) <= 1)  # with its last thread
        try:  # not Linux
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def exit_status(self) -> int | None:
        """As wait() gives it, while the process is a zombie; None if it is not known."""
        now = _stat(self.pid)
        return int(now[49]) if now[19:20] == self.began and now[:1] == ["Z"] and len(now) > 49 else None

    def is_ending(self) -> bool:
        """Whether the kernel is taking it down, or has done so."""
        now = _stat(self.pid)
        return self.gone() or bool(now and int(now[6]) & PF_EXITING)

    def kill(self, number: int = signal.SIGKILL) -> None:
        if not self.gone():
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)


class Starter(Process):
    """What has started the ranks: MPI's daemon on their host, mpiexec, or fcaffe's launcher.

    `stderr` is where it writes its errors, if that can be opened: what goes there reaches the user also when it, and
    with it the way on which the errors of ranks travel, has gone.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.is_daemon = self.name in DAEMONS
        self.is_launcher = str(pid) == os.environ.get(LAUNCHER)
        self.stderr = None if self.is_daemon else _errors_of(pid)

    def __str__(self) -> str:
        return f"{LAUNCHER_NAME if self.is_launcher else self.name or 'the process'} (process {self.pid})"


class Network:
    """The guards of the other hosts: their tables, as last heard of. `guards` has (host, UDP port) of each.

    Messages are sealed: an HMAC with the job's `key` over the sender's number and a count, so nobody else can make one
    up, and none is taken twice. The `key` itself is never sent. Without a socket there are no other hosts.
    """

    def __init__(self, guards: list[tuple[str, int]], handle: int | None, key: bytes, number: int) -> None:
        self.socket = None if handle is None else socket.socket(fileno=handle)
        self.key = key
        self.number = number
        self.sent = 0
        self.last: dict[int, int] = {}  # the count of the last message from each guard
        self.addresses: list[tuple[str, int]] = []
        self.slots: dict[str, list[Slot]] = {}  # by the number of the guard that sent them
        self.heard: dict[str, float] = {}
        self.faults: list[tuple[float, int]] = []
        if self.socket is None:
            return
        self.socket.setblocking(False)
        resolving = threading.Thread(target=self.resolve, args=(guards,), daemon=True)
        resolving.start()
        resolving.join(0.5)  # a name service that is down would take much longer

    def resolve(self, guards: list[tuple[str, int]]) -> None:
        for host, port in guards:
            with contextlib.suppress(OSError):  # without a name service we know less of the other hosts
                self.addresses.append((socket.gethostbyname(host), port))

    def send(self, slots: Iterable[Slot]) -> None:
        self._send(SLOTS_INSIDE, b"".join(SLOT.pack(*slot[:-1], slot.operation.encode()) for slot in slots))

    def send_fault(self, when: float, rank: int) -> None:
        """Tell that the guard of this rank has found a fault."""
        self._send(FAULT_INSIDE, FAULT.pack(when, rank))

    def knows_of_fault(self, rank: int) -> bool:
        """Whether another guard has found a fault before that of this rank, which does so now, and tells the others.

        If two find one before they hear of one another, the clocks of their hosts decide.
        """
        self.receive()
        own, known = (time.time(), rank), bool(self.faults)
        if not known:
            self.send_fault(*own)
        deadline = time.monotonic() + HEARING * bool(self.addresses)
        while time.monotonic() < deadline:
            time.sleep(0.02)
            self.receive()
        known = known or any(fault < own for fault in self.faults)
        if known:
            time.sleep(HEARING)  # till it has said so: what we end now may take mpiexec with it
        return known

    def _send(self, kind: bytes, content: bytes) -> None:
        if self.socket is None:
            return
        self.sent += 1
        message = HEADER.pack(self.number, self.sent, kind) + content
        for address in self.addresses:
            with contextlib.suppress(OSError):
                self.socket.sendto(message + self.seal(message), address)

    def seal(self, message: bytes) -> bytes:
        return hmac.digest(self.key, message, "sha256")

    def receive(self) -> None:
        while self.socket is not None:
            try:
                sealed = self.socket.recv(1 << 16)
            except OSError:
                return
            message, seal = sealed[:-SEAL], sealed[-SEAL:]
            if len(message) >= HEADER.size and hmac.compare_digest(seal, self.seal(message)):
                sender, count, kind = HEADER.unpack_from(message)
                self.take(sender, count, kind, message[HEADER.size :])

    def take(self, sender: int, count: int, kind: bytes, content: bytes) -> None:
        if sender == self.number or count <= self.last.get(sender, 0):
            return  # what somebody has recorded and plays again
        self.last[sender] = count
        if kind == FAULT_INSIDE:
            self.faults.append(FAULT.unpack(content))
        else:
            self.slots[str(sender)] = read_slots(content)
            self.heard[str(sender)] = time.monotonic()

    def silent(self) -> list[Slot]:
        """The ranks of hosts that have been heard of, but no longer are."""
        now = time.monotonic()
        return [slot for name, slots in self.slots.items() if now - self.heard[name] > SILENCE for slot in slots]

    def everyone(self) -> list[Slot]:
        return [slot for slots in self.slots.values() for slot in slots]


class Guard:
    """`pipes` are the other ends of those that the ranks hold while they live, in the order of their slots; `hosts` has
    the host of each rank of the job; `timeout` is in seconds, 0 for none."""

    def __init__(
        self, table: mmap.mmap, pipes: list[int], timeout: float, hosts: list[str], network: Network, reports: bool
    ) -> None:
        self.table = table
        self.timeout = timeout
        self.hosts = hosts
        self.network = network
        self.reports = reports
        slots = read_slots(table)
        self.ranks = [Process(slot.pid) for slot in slots]
        self.host = hosts[slots[0].rank]
        chains = [_starters_above(rank.pid) for rank in self.ranks]
        self.starters = [Starter(pid) for pid in dict.fromkeys(pid for chain in chains for pid in chain)]
        self.deaths: list[int] = []  # in their order
        self.pipes = pipes
        self.epoll = select.epoll() if hasattr(select, "epoll") else None
        self.dead_starter: Starter | None = None
        self.handles: dict[int, Starter] = {}  # that the kernel makes readable when a starter ends
        if self.epoll:
            if hasattr(os, "pidfd_open"):
                for starter in self.starters:
                    with contextlib.suppress(OSError):  # gone already, or an old kernel
                        self.handles[os.pidfd_open(starter.pid)] = starter
            for handle in (*pipes, *self.handles):
                self.epoll.register(handle, select.EPOLLIN | select.EPOLLONESHOT)
        self.quiet = [0.0] * len(slots)  # seconds without a beat
        self.beats = [-1] * len(slots)
        self.waits: dict[int, dict[str, float]] = {}  # of ranks for cores, when we last looked
        self.fault = self.failed = False
        self.next_report = 0.0

    def watch(self) -> None:
        """Return when all ranks have gone."""
        before = time.monotonic()
        while len(self.deaths) < len(self.ranks):
            self.sleep()
            now = time.monotonic()
            self.look(min(now - before, 4 * TICK))
            before = now
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and not all(rank.gone() for rank in self.ranks):
            time.sleep(0.005)  # their pipes have closed, and the last of their memory goes a moment later
        if self.fault:
            os.closerange(0, 3)  # for which the daemon waits
            self.end_daemons()

    def sleep(self) -> None:
        """For a tick, or until a rank or a starter dies; note deaths.

        mpiexec sees the first one's connection close, and kills the others within a millisecond. So who was first is
        told by pipes, which close at the same moment, and epoll has events in the order in which they came. The end of
        the process itself comes later by some milliseconds, in any order.
        """
        if self.epoll:
            for handle, _ in self.epoll.poll(TICK):
                if handle in self.handles:
                    self.note_end_of(self.handles[handle])
                else:
                    self.note_death_of(self.pipes.index(handle))
        else:
            time.sleep(TICK / 10)
        for starter in self.starters:
            if starter not in self.handles.values() and starter.gone():
                self.note_end_of(starter)
        self.deaths += [i for i, rank in enumerate(self.ranks) if i not in self.deaths and rank.gone()]

    def look(self, seconds: float) -> None:
        """Find the dead and the hung; `seconds` have passed since the last look."""
        self.network.receive()
        slots = read_slots(self.table)
        seconds = max(seconds - self.starved(slots), LEAST * seconds)
        overdue = [slot for index, slot in enumerate(slots) if self.overdue(index, slot, seconds)]
        dead = [slots[index] for index in self.deaths if slots[index].state != LEAVING]
        failed = any(slot.state == FAILED for slot in slots)
        if failed and not self.failed:
            self.network.send_fault(0.0, slots[0].rank)  # before all others: what it says of itself says more
        self.failed = failed
        starter = self.dead_starter
        if failed and starter is not None and not starter.is_launcher:
            starter = None  # mpiexec ends once a rank has failed; the launcher stays
        if not self.fault and starter is not None and (dead or len(self.deaths) < len(slots)):
            self.end_orphans(starter, slots)
        elif not self.fault and not failed:
            if dead:
                self.end(f"{self.names(dead[:1])} died in {dead[0].where()}: killed, or crashed outside of Python")
            elif overdue:
                self.end(self.hung(overdue[0], slots))
        if time.monotonic() > self.next_report:
            self.next_report = time.monotonic() + REPORT
            self.network.send(slot._replace(state=STOPPED) if _is_stopped(slot.pid) else slot for slot in slots)
            if self.reports:
                _write(1, report(max(slot.iteration for slot in slots)))

    def note_end_of(self, starter: Starter) -> None:
        """The first starter to end is to blame for all, unless a rank had died before and it ends for that.

        One that is killed closes its connections before it is seen to have ended; so one further down, which was not
        killed but ends for that, may seem to be the first.
        """
        slots = read_slots(self.table)
        if self.dead_starter is not None or any(slots[index].state != LEAVING for index in self.deaths):
            return
        self.dead_starter = starter
        if not (starter.exit_status() or 0) & SIGNAL_OF_STATUS:
            self.dead_starter = self.killed_from(self.starters.index(starter) + 1) or starter
        elif self.starters[-1].is_launcher and self.starters[-1].is_ending():
            self.dead_starter = self.starters[-1]  # with which the kernel ends what it has started

    def note_death_of(self, index: int) -> None:
        """A rank dies with what has started it, and may be seen to have ended first, as a process with several threads
        takes its time."""
        is_first = all(read_slots(self.table)[other].state == LEAVING for other in self.deaths)
        if self.dead_starter is None and is_first:
            self.dead_starter = self.killed_from(0)
        self.deaths.append(index)

    def killed_from(self, index: int) -> Starter | None:
        """The last of the starters from that one on that is ending now, other than by itself."""
        found = None
        for starter in self.starters[index:]:
            if starter.is_ending():
                status = starter.exit_status()
                found = starter if status is None or status & SIGNAL_OF_STATUS else found
        return found

    def end_orphans(self, starter: Starter, slots: list[Slot]) -> None:
        """The starter has died before the ranks had ended: so do they."""
        index = self.starters.index(starter)
        if starter.is_daemon:
            index += 1  # what it writes goes the way of what ranks write
        stderr = next((one.stderr for one in self.starters[index:] if one.stderr is not None), None)
        self.end(f"{starter} on {self.host} died, which had started {self.names(slots)}; so do they", stderr)

    def starved(self, slots: list[Slot]) -> float:
        """For how many seconds since the last look one of those ranks here on which the others wait had no core: of
        those that work, or, if none does, of all."""
        before, self.waits = self.waits, {}
        if all(slot.beats != beats for slot, beats in zip(slots, self.beats, strict=True)):
            return 0.0  # nobody's time is counted
        if any(_is_stopped(slot.pid) for slot in slots):
            return 0.0
        late = [slot.pid for slot in slots if slot.state == WORKING] or [slot.pid for slot in slots]
        self.waits = {pid: waits_for_cores(pid) for pid in late}
        then = {pid: before.get(pid, now) for pid, now in self.waits.items()}
        threads = [(pid, thread) for pid, now in self.waits.items() for thread in now if thread in then[pid]]
        return max((self.waits[pid][thread] - then[pid][thread] for pid, thread in threads), default=0.0)

    def overdue(self, index: int, slot: Slot, seconds: float) -> bool:
        if slot.beats != self.beats[index]:
            self.beats[index], self.quiet[index] = slot.beats, 0.0
        else:
            self.quiet[index] += seconds
        return 0 < self.timeout < self.quiet[index] and index not in self.deaths

    def hung(self, first: Slot, slots: list[Slot]) -> str:
        """Who is to blame that `first` did not go on: one that cannot be reached, else one that is stopped, else one
        that does not itself wait for others, else one that is behind."""
        limit = f"within {self.timeout:g} s (--timeout)"
        self.network.receive()
        silent, others = self.network.silent(), self.network.everyone()
        if silent:
            stuck = f"{self.names([first])} did not come out of {first.where()} {limit}"
            if len(silent) == len(others) and len(set(self.hosts)) > 2:
                return f"{stuck}: {self.host} is cut off from all other hosts"
            return f"{self.names(silent)} is cut off from the other hosts since {silent[0].where()}: {stuck}"
        everyone = [
            slot._replace(state=STOPPED) if _is_stopped(slot.pid) else slot
            for slot in slots
            if slot.state in (WORKING, WAITING)
        ] + [slot for slot in others if slot.state in (WORKING, WAITING, STOPPED)]
        stopped = [slot for slot in everyone if slot.state == STOPPED]
        working = [slot for slot in everyone if slot.state == WORKING]
        missing = set(range(len(self.hosts))) - {slot.rank for slot in (*slots, *others)}
        if not stopped and not working and missing:
            unknown = ", ".join(f"rank {rank} on {self.hosts[rank]}" for rank in sorted(missing)[:16])
            return (
                f"{self.names([first])} did not come out of {first.where()} {limit}: it waits for one on another host, "
                f"which hangs or cannot be reached: {unknown}"
            )
        behind = [slot for slot in everyone if slot.iteration == min(slot.iteration for slot in everyone)]
        late = stopped or working or behind or [first]
        waiting = sorted(slot.rank for slot in everyone if slot.state == WAITING and slot not in late)
        return (
            f"{self.names(late)} did not come out of {late[0].where()} {limit}"
            + (": stopped by a signal (SIGSTOP)" if stopped else "")
            + (f"; waiting for it: {_some(waiting)}" if waiting else "")
        )

    def names(self, slots: Iterable[Slot]) -> str:
        groups: dict[str, list[Slot]] = {}
        for slot in slots:
            groups.setdefault(self.hosts[slot.rank], []).append(slot)
        words = []
        for host, group in groups.items():
            if len(group) == 1:
                words.append(f"rank {group[0].rank} (process {group[0].pid}) on {host}")
            else:
                words.append(f"ranks {_some([slot.rank for slot in group])} on {host}")
        return " and ".join(words)

    def end(self, message: str, stderr: int | None = None) -> None:
        """Say why, and end all ranks of this host; mpiexec, if it can still be reached, ends those of the others.

        `stderr` is where to say it, if not where ranks write their errors.
        """
        self.fault = True
        if not self.network.knows_of_fault(read_slots(self.table)[0].rank):  # of which this one is a consequence
            line = sys._getframe(1).f_lineno
            now = time.time()
            stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))  # a line as those of fcaffe.log
            tag = f"F{stamp}.{int(now % 1 * 1e6):06d} {os.getpid():5d} guard.py:{line}]"
            _write(2 if stderr is None else stderr, f"{tag} {message}\n".encode())
        for rank in self.ranks:
            rank.kill()

    def end_daemons(self) -> None:
        """MPI's process on a host that is cut off does not know that the job is over, and would stay for good."""
        daemons = [starter for starter in self.starters if starter.is_daemon]
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + GRACE
            while time.monotonic() < deadline and not all(daemon.gone() for daemon in daemons):
                time.sleep(0.05)
            for daemon in daemons:
                daemon.kill(number)


def report(iteration: int) -> bytes:
    """A line to the launcher; -1: the ranks have found one another."""
    return MARK + b"%d\n" % iteration


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 16 else f"{ranks[0]}, {ranks[1]} ... {ranks[-1]}"


def _write(stream: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads any more
        os.write(stream, data)


def process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where there is no such file."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _is_stopped(pid: int) -> bool:
    return _stat(pid)[:1] in (["T"], ["t"])


def waits_for_cores(pid: int) -> dict[str, float]:
    """For how many seconds each thread of a process could have run, but others had the cores; of none where the kernel
    does not tell."""
    found = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError, IndexError),
                open(f"/proc/{pid}/task/{thread}/schedstat") as file,
            ):
                found[thread] = int(file.read().split()[1]) / 1e9
    return found


def that_counts(seconds: float, pids: Iterable[int]) -> float:
    """What of the `seconds` that some processes have taken since they began, or less, counts against a time-out: not
    that for which one of them had no core."""
    starved = max((wait for pid in pids for wait in waits_for_cores(pid).values()), default=0.0)
    return max(seconds - starved, LEAST * seconds)


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal() and parent_of(int(name)) == pid]
    return []


def was_killed(pid: int) -> bool:
    """Whether a process that is ending does so by a signal, as far as that can still be seen."""
    now = _stat(pid)
    return bool(now and int(now[6]) & PF_SIGNALED)


def _errors_of(pid: int) -> int | None:
    """A handle of what a process has as its standard error; None if it may not be had.

    It should be the very same open file: of one opened anew the place to write at is another, and the process, or the
    shell that started it, would write over what we have written.
    """
    with contextlib.suppress(OSError, AttributeError):
        number = ctypes.CDLL(None).syscall(PIDFD_GETFD, os.pidfd_open(pid), 2, 0)
        if number >= 0:
            return int(number)
    with contextlib.suppress(OSError):
        return os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK)
    return None


def parent_of(pid: int) -> int:
    """0 if unknown."""
    return int((_stat(pid) or ["", "0"])[1])


def _starters_above(pid: int) -> list[int]:
    """Those processes above a rank that have started it, the nearest first: its parent, and on from there to MPI's
    daemon, to mpiexec, and to fcaffe's launcher."""
    chain, known = [], 1
    while (pid := parent_of(pid)) > 1:
        chain.append(pid)
        if _starts_ranks(pid):
            known = len(chain)
    return [one for one in chain[:known] if one == chain[0] or _starts_ranks(one)]


def _starts_ranks(pid: int) -> bool:
    return process_name(pid) in (*DAEMONS, *STARTERS) or str(pid) == os.environ.get(LAUNCHER)


def main() -> None:
    """What it needs to know comes as JSON on standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it goes when the ranks have gone
    told: dict[str, Any] = json.load(sys.stdin)
    leftovers = runpy.run_path(os.path.join(os.path.dirname(__file__), "leftovers.py"))
    leftovers["remove_memory"]()  # of jobs before this one, of which nothing was left to do so
    leftovers["remove_folders"]()
    guards = [(host, port) for host, port in told["guards"]]
    network = Network(guards, told["socket"], bytes.fromhex(told["key"]), told["number"])
    table = mmap.mmap(told["table"], 0, prot=mmap.PROT_READ)
    Guard(table, told["pipes"], told["timeout"], told["hosts"], network, told["reports"]).watch()
    leftovers["remove_memory"]()


if __name__ == "__main__":
    main()
