"""The guard of the ranks of one host: names the rank that dies or hangs, and ends the others.

A process of its own (`watchdog.py` starts it), because it must outlive the ranks: when one of them is killed, mpiexec
kills the others before they could say which. And because a rank can hang with Python's lock held, and needs its cores
for other things. It imports nothing but the standard library, so that it starts at once and stays small.

What it knows of its ranks is in a table that they share with it, one slot each; once a second the guards of all hosts
send one another their tables. A rank lives as long as its count of beats changes. For how long it has not is measured
by the guard's own ticks, so a job that a batch system suspends and resumes has not hung.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
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
WORKING, WAITING, LEAVING, FAILED, STOPPED = range(5)

TICK = 0.25  # seconds
REPORT = 1.0  # seconds between two reports to the other guards and to the launcher
HEARING = 0.3  # seconds to hear whether the guard of another host has found the fault before
SILENCE = 3.5  # seconds without a report after which a host counts as cut off
MARK = b"\x1efcaffe "  # begins a report to the launcher, on standard output; `launch.py` takes them out
GRACE = 3.0  # seconds that a host's MPI daemon has to end after its ranks
DAEMONS = ("hydra_pmi_proxy", "pmi_proxy", "orted", "prted")


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
        self.began = _stat(pid)[19:20]  # against another process that gets the same number later

    def gone(self) -> bool:
        now = _stat(self.pid)
        if now or self.began:
            return now[19:20] != self.began or now[:1] == ["Z"]
        try:  # not Linux
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        if not self.gone():
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)


class Network:
    """The guards of the other hosts: their tables, as last heard of. `guards` has (host, UDP port) of each."""

    def __init__(self, guards: list[tuple[str, int]], handle: int, token: str) -> None:
        self.socket = socket.socket(fileno=handle)
        self.socket.setblocking(False)
        self.token = token.encode()
        self.addresses: list[tuple[str, int]] = []
        self.slots: dict[str, list[Slot]] = {}  # by the address that they come from
        self.heard: dict[str, float] = {}
        self.faults: list[tuple[float, int]] = []
        resolving = threading.Thread(target=self.resolve, args=(guards,), daemon=True)
        resolving.start()
        resolving.join(0.5)  # a name service that is down would take much longer

    def resolve(self, guards: list[tuple[str, int]]) -> None:
        for host, port in guards:
            with contextlib.suppress(OSError):  # without a name service we know less of the other hosts
                self.addresses.append((socket.gethostbyname(host), port))

    def send(self, slots: Iterable[Slot]) -> None:
        self._send(b"".join(SLOT.pack(*slot[:-1], slot.operation.encode()) for slot in slots))

    def send_fault(self, when: float, rank: int) -> None:
        """Tell that the guard of this rank has found a fault."""
        self._send(FAULT.pack(when, rank))

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

    def _send(self, content: bytes) -> None:
        for address in self.addresses:
            with contextlib.suppress(OSError):
                self.socket.sendto(self.token + content, address)

    def receive(self) -> None:
        while True:
            try:
                message, (address, port) = self.socket.recvfrom(1 << 16)
            except OSError:
                return
            if not message.startswith(self.token):
                continue
            content = message[len(self.token) :]
            if len(content) == FAULT.size:
                self.faults.append(FAULT.unpack(content))
            else:
                self.slots[f"{address}:{port}"] = read_slots(content)
                self.heard[f"{address}:{port}"] = time.monotonic()

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
        self.parents = [Process(pid) for pid in {_daemon_above(rank.pid) for rank in self.ranks} if pid > 1]
        self.deaths: list[int] = []  # in their order
        self.pipes = pipes
        self.epoll = select.epoll() if hasattr(select, "epoll") else None
        if self.epoll:
            for pipe in pipes:
                self.epoll.register(pipe, select.EPOLLIN | select.EPOLLONESHOT)
        self.quiet = [0.0] * len(slots)  # seconds without a beat
        self.beats = [-1] * len(slots)
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
        if self.fault:
            os.closerange(0, 3)  # for which the daemon waits
            self.end_daemons()

    def sleep(self) -> None:
        """For a tick, or until a rank dies; note deaths.

        mpiexec sees the first one's connection close, and kills the others within a millisecond. So who was first is
        told by pipes, which close at the same moment, and epoll has events in the order in which they came. The end of
        the process itself comes later by some milliseconds, in any order.
        """
        if self.epoll:
            self.deaths += [self.pipes.index(pipe) for pipe, _ in self.epoll.poll(TICK)]
        else:
            time.sleep(TICK / 10)
        self.deaths += [i for i, rank in enumerate(self.ranks) if i not in self.deaths and rank.gone()]

    def look(self, seconds: float) -> None:
        """Find the dead and the hung; `seconds` have passed since the last look."""
        self.network.receive()
        slots = read_slots(self.table)
        overdue = [slot for index, slot in enumerate(slots) if self.overdue(index, slot, seconds)]
        dead = [slots[index] for index in self.deaths if slots[index].state != LEAVING]
        failed = any(slot.state == FAILED for slot in slots)
        if failed and not self.failed:
            self.network.send_fault(0.0, slots[0].rank)  # before all others: what it says of itself says more
        self.failed = failed
        if not self.fault and not failed:
            if dead:
                self.end(f"{self.names(dead[:1])} died in {dead[0].where()}: killed, or crashed outside of Python")
            elif overdue:
                self.end(self.hung(overdue[0], slots))
            elif len(self.deaths) < len(slots) and any(parent.gone() for parent in self.parents):
                self.end(f"MPI's process on {self.host} that had started {self.names(slots)} has gone; so do they")
        if time.monotonic() > self.next_report:
            self.next_report = time.monotonic() + REPORT
            self.network.send(slot._replace(state=STOPPED) if _is_stopped(slot.pid) else slot for slot in slots)
            if self.reports:
                _write(1, report(max(slot.iteration for slot in slots)))

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

    def end(self, message: str) -> None:
        """Say why, and end all ranks of this host; mpiexec, if it can still be reached, ends those of the others."""
        self.fault = True
        if not self.network.knows_of_fault(read_slots(self.table)[0].rank):  # of which this one is a consequence
            line = sys._getframe(1).f_lineno
            now = time.time()
            stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))  # a line as those of fcaffe.log
            _write(2, f"F{stamp}.{int(now % 1 * 1e6):06d} {os.getpid():5d} guard.py:{line}] {message}\n".encode())
        for rank in self.ranks:
            rank.kill()

    def end_daemons(self) -> None:
        """MPI's process on a host that is cut off does not know that the job is over, and would stay for good."""
        daemons = [parent for parent in self.parents if _name(parent.pid) in DAEMONS]
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


def _name(pid: int) -> str:
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


def _daemon_above(pid: int) -> int:
    """MPI's daemon among the ancestors of a rank, else its parent; 0 if unknown."""
    parent = ancestor = int((_stat(pid) or ["", "0"])[1])
    while ancestor > 1:
        if _name(ancestor) in DAEMONS:
            return ancestor
        ancestor = int((_stat(ancestor) or ["", "0"])[1])
    return parent


def main() -> None:
    """What it needs to know comes as JSON on standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it goes when the ranks have gone
    told: dict[str, Any] = json.load(sys.stdin)
    network = Network([(host, port) for host, port in told["guards"]], told["socket"], told["token"])
    table = mmap.mmap(told["table"], 0, prot=mmap.PROT_READ)
    Guard(table, told["pipes"], told["timeout"], told["hosts"], network, told["reports"]).watch()


if __name__ == "__main__":
    main()
