"""What the control groups that hold this process allow it: containers and batch systems limit memory and CPUs by these.

A group lies in others, and each may have limits: the tightest of them counts. Version 1 has a tree of groups for each
controller, version 2 one for all; a host may have both mounted at once. Linux only; elsewhere nothing is limited.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path("/")  # of the file system that is looked at; tests have one of their own
UNLIMITED = 2**60  # bytes; version 1 writes a number as large as this where version 2 writes "max"


class Group(NamedTuple):
    """The folder of a control group, and the version of its files."""

    folder: Path
    version: int

    def number(self, name: str) -> int | None:
        """The number in the file of this name; None if there is no such file, or no limit in it."""
        text = self.text(name)
        return int(text) if text.isdecimal() and int(text) < UNLIMITED else None

    def text(self, name: str) -> str:
        """What is in the file of this name; nothing if there is no such file."""
        try:
            return (self.folder / name).read_text().strip()
        except OSError:
            return ""


def free_memory(swap: int = 0) -> int | None:
    """The bytes that processes of this process's groups can still have; None if no group has a limit.

    The kernel's cache of file pages, which it would drop, counts as free, and so does the part of the machine's free
    `swap` that the groups may use.
    """
    rooms = [room for group in groups("memory") if (room := _room(group, swap)) is not None]
    return max(0, min(rooms)) if rooms else None


def cpu_quota() -> float | None:
    """How many CPUs' time this process's groups may use; None if no group has a quota."""
    quotas = [quota for group in groups("cpu") if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def groups(controller: str) -> Iterator[Group]:
    """The groups of this process that have the controller, and all groups around them that can be seen from here."""
    try:
        own = (ROOT / "proc/self/cgroup").read_text().splitlines()
        mounts = (ROOT / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    paths: dict[int, str] = {}
    for line in own:
        number, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if number == "0" and not controllers:
            paths[2] = path
        elif controller in controllers.split(","):
            paths[1] = path
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        version = {"cgroup": 1, "cgroup2": 2}.get(kinds[0], 0) if kinds and len(fields) > 4 else 0
        if version not in paths or (version == 1 and controller not in kinds[-1].split(",")):
            continue
        mount_point, inner = _unescaped(fields[4]), _below(paths[version], _unescaped(fields[3]))
        mounted = ROOT / mount_point.lstrip("/")
        for depth in range(len(inner), -1, -1):
            folder = mounted.joinpath(*inner[:depth])
            if folder.is_dir():
                yield Group(folder, version)


def _below(path: str, mounted: str) -> tuple[str, ...]:
    """The names on the way down from the mounted group to the group `path`. Empty if that is not below it: then `path`
    is as a container sees it, and the group is what is mounted."""
    here, there = PurePosixPath(path).parts, PurePosixPath(mounted).parts
    if here[: len(there)] != there or ".." in here:
        return ()
    return here[len(there) :]


def _unescaped(name: str) -> str:
    """A path from mountinfo, where blanks and the like are octal numbers behind a backslash."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), name)


def _room(group: Group, swap: int) -> int | None:
    """The bytes that a group has left; None if it has no limit."""
    pairs = [line.split() for line in group.text("memory.stat").splitlines()]
    stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
    if group.version == 2:
        limits = [limit for name in ("memory.max", "memory.high") if (limit := group.number(name)) is not None]
        used = group.number("memory.current") or 0
        cache = stat.get("inactive_file", 0) + stat.get("active_file", 0) + stat.get("slab_reclaimable", 0)
        swappable = group.number("memory.swap.max")
        if swappable is not None:
            swap = max(0, min(swap, swappable - (group.number("memory.swap.current") or 0)))
        return min(limits) - used + min(cache, used) + swap if limits else None
    named = group.number("memory.limit_in_bytes"), stat.get("hierarchical_memory_limit")
    limits = [limit for limit in named if limit is not None and limit < UNLIMITED]
    if not limits:
        return None
    used = group.number("memory.usage_in_bytes") or 0
    cache = min(used, stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0))
    both = group.number("memory.memsw.limit_in_bytes")  # of memory and swap together
    if both is None:
        return min(limits) - used + cache + swap
    return min(min(limits) - used + swap, both - (group.number("memory.memsw.usage_in_bytes") or 0)) + cache


def _quota(group: Group) -> float | None:
    """How many CPUs' time a group may use; None if it has no quota."""
    if group.version == 2:
        quota, _, period = group.text("cpu.max").partition(" ")
    else:
        quota, period = group.text("cpu.cfs_quota_us"), group.text("cpu.cfs_period_us")
    if not (quota.isdecimal() and period.isdecimal() and int(quota) and int(period)):
        return None  # "max", or -1
    return int(quota) / int(period)


def whole_cpus(quota: float) -> int:
    """How many threads a quota keeps busy; with a part of a CPU left over, one more is still of use."""
    return max(1, math.ceil(quota))
