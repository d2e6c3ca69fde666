"""The hosts of a job, and the number of ranks on each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fcaffe.errors import UsageError
from fcaffe.input_files import read_input

NAME = r"([\w.-]+@)?(?:\[([0-9A-Fa-f]*:[0-9A-Fa-f:.]+(?:%\w+)?)\]|([\w.-]+))"
DEFAULT_TIMEOUT = 300  # seconds
Host = tuple[str, int | None]  # name, number of ranks if given
Hosts = Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Elastic:
    """The limits of an elastic job. `fits(workers)` says whether a training can have so many workers; `hosts()` reads
    the hosts and the number of ranks that each takes. The job waits `rejoin` seconds for a lost host."""

    least: int
    most: int
    rejoin: float
    hosts: Callable[[], Hosts]
    fits: Callable[[int], bool]


@dataclass(frozen=True)
class Plan:
    """The ranks of a job. `hosts` is empty for this host alone; `shell` is the remote shell, '' for ssh."""

    workers: int
    hosts: Hosts = ()
    timeout: float = DEFAULT_TIMEOUT
    restarts: int = 0
    elastic: Elastic | None = None
    shell: str = ""


class Snapshots:
    """What a job knows of the states that its ranks write; this one is of a job that writes none."""

    def newest(self) -> str | None:
        """The newest state that this job has written."""
        return None

    def source(self) -> str:
        """Where ranks that start again begin, for a message."""
        return self.newest() or "the start"

    def remedy(self) -> str:
        """How to go on after a fault, for the end of its message."""
        return ""


def parse_hosts(text: str, source: str = "--hosts") -> list[Host]:
    """The entries of `a:8,b:8`, or the lines of a hostfile: MPICH's `a:8`, Open MPI's `a slots=8`, or names alone.

    A name may have a user for ssh, `user@a:8`. An IPv6 address stands in brackets, `[fd00::1]:8`. Raises UsageError.
    """
    hosts: list[Host] = []
    for entry in re.split(r"[,\n]", re.sub(r"#.*", "", text)):
        if not entry.strip():
            continue
        match = re.fullmatch(rf"{NAME}(?:\s*:\s*(\d+)|(?:\s.*)?\sslots\s*=\s*(\d+).*)?", entry.strip())
        if match is None or "0" in match.groups():
            raise UsageError(
                f"{source}: cannot read '{entry.strip()}'; write host, user@host or [IPv6 address], or host:N or "
                "host slots=N for N ranks on it"
            )
        user, address, name, count, slots = match.groups()
        hosts.append((f"{user or ''}{address or name}", int(count or slots) if count or slots else None))
    if not hosts:
        raise UsageError(f"{source}: there is no host in it")
    return hosts


def bare(host: str) -> str:
    """The name of a host without the user for ssh."""
    return host.rpartition("@")[2]


def read_hostfile(path: str) -> list[Host]:
    try:
        return parse_hosts(read_input(path).decode(errors="replace"), f"--hostfile {path}")
    except OSError as problem:
        raise UsageError(f"--hostfile {path}: cannot read it ({problem.strerror})") from problem


def ranks_of_hosts(workers: int, hosts: Sequence[Host]) -> tuple[tuple[str, int], ...]:
    """Fill the hosts in order until `workers` ranks (0: as many as possible) have a host.

    If no host has a number of ranks, all get the same number, or the first ones one more than the others.
    """
    counts = [count or 1 for _, count in hosts]
    if all(count is None for _, count in hosts):
        each, more = divmod(workers or len(hosts), len(hosts))
        counts = [each + (index < more) for index in range(len(hosts))]
    elif workers > sum(counts):
        room = ",".join(f"{name}:{count}" for (name, _), count in zip(hosts, counts, strict=True))
        raise UsageError(f"--workers {workers}, but the hosts have room for {sum(counts)}: {room}")
    left = workers or sum(counts)
    filled: dict[str, int] = {}
    for (name, _), count in zip(hosts, counts, strict=True):
        if number := min(count, left):
            filled[name] = filled.get(name, 0) + number  # a batch system may list a host once for each rank
        left -= number
    return tuple(filled.items())
