"""Which hosts a job runs on, and how many ranks each of them gets."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fcaffe.errors import UsageError
from fcaffe.input_files import read_input

Host = tuple[str, int | None]  # name, number of ranks if it is said


def parse_hosts(text: str, source: str = "--hosts") -> list[Host]:
    """The entries of `a:8,b:8`, or the lines of a hostfile: MPICH's `a:8`, Open MPI's `a slots=8`, or names alone.

    Raises UsageError.
    """
    hosts: list[Host] = []
    for entry in re.split(r"[,\n]", re.sub(r"#.*", "", text)):
        if not entry.strip():
            continue
        match = re.fullmatch(r"([\w.-]+)(?:\s*:\s*(\d+)|(?:\s.*)?\sslots\s*=\s*(\d+).*)?", entry.strip())
        if match is None or "0" in match.groups():
            raise UsageError(f"{source}: cannot read '{entry.strip()}'; write host, or host:N for N ranks on it")
        count = match[2] or match[3]
        hosts.append((match[1], int(count) if count else None))
    if not hosts:
        raise UsageError(f"{source}: there is no host in it")
    return hosts


def read_hostfile(path: str) -> list[Host]:
    try:
        return parse_hosts(read_input(path).decode(errors="replace"), f"--hostfile {path}")
    except OSError as problem:
        raise UsageError(f"--hostfile {path}: cannot read it ({problem.strerror})") from problem


def ranks_of_hosts(workers: int, hosts: Sequence[Host]) -> tuple[tuple[str, int], ...]:
    """How many ranks each host gets: as many as it says, in order, until `workers` (0: all) are placed.

    If no host says how many, each gets the same number, and the first ones one more if it does not come out even.
    """
    counts = [count or 1 for _, count in hosts]
    if all(count is None for _, count in hosts):
        each, more = divmod(workers or len(hosts), len(hosts))
        counts = [each + (index < more) for index in range(len(hosts))]
    elif workers > sum(counts):
        room = ",".join(f"{name}:{count}" for (name, _), count in zip(hosts, counts, strict=True))
        raise UsageError(f"--workers {workers}, but the hosts have room for {sum(counts)}: {room}")
    left = workers or sum(counts)
    placed = []
    for (name, _), count in zip(hosts, counts, strict=True):
        if min(count, left):
            placed.append((name, min(count, left)))
        left -= min(count, left)
    return tuple(placed)
