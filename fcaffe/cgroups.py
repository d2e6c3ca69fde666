"""The limits of this process's control groups, by which containers and batch systems limit memory and CPUs.

Groups are nested, and the tightest limit counts. Version 1 has a tree of groups for each controller, version 2 has one
tree, and a host may mount both. Only Linux has control groups.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path("/")  # of the file system; tests replace it
UNLIMITED = 2**60  # bytes; version 1 writes a number as large as this where version 2 writes "max"


class Group(NamedTuple):
    """The folder of a control group, and the version of its files."""

    folder: Path
    version: int

    def number(self, name: str) -> int | None:
        """Return the number in the file of this name; None if there is no such file or no limit in it."""
        text = self.text(name)
        return int(text) if text.isdecimal() and int(text) < UNLIMITED else None

    def text(self, name: str) -> str:
        """Return the content of the file of this name; '' if there is no such file."""
        try:
            return (self.folder / name).read_text().strip()
        except OSError:
            return ""


def free_memory(swap: int = 0) -> int | None:
    """Return the bytes that this process's groups can still allocate; None if no group has a limit.

    The kernel's cache of file pages counts as free, and so does the part of the machine's free `swap` that the groups
    may use.
    """
    free = [left for group in groups("memory") if (left := _free(group, swap)) is not None]
    return max(0, min(free)) if free else None


def cpu_quota() -> float | None:
    """Return the CPUs' worth of time that this process's groups may use; None if no group has a quota."""
    quotas = [quota for group in groups("cpu") if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def groups(controller: str) -> Iterator[Group]:
    """Yield the groups of this process that have the controller, and their visible ancestors."""
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
    """Return the names on the way from the mounted group down to the group `path`.

    Empty if `path` is not below it: then `path` is a container's view, and the mounted group is the group itself.
    """
    here, there = PurePosixPath(path).parts, PurePosixPath(mounted).parts
    if here[: len(there)] != there or ".." in here:
        return ()
    return here[len(there) :]


def _unescaped(name: str) -> str:
    """Decode a path of mountinfo, which writes blanks as a backslash and an octal number."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), name)


def _free(group: Group, swap: int) -> int | None:
    """Return the bytes that a group has left; None if it has no limit."""
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
    """Return the CPUs' worth of time that a group may use; None if it has no quota."""
    if group.version == 2:
        quota, _, period = group.text("cpu.max").partition(" ")
    else:
        quota, period = group.text("cpu.cfs_quota_us"), group.text("cpu.cfs_period_us")
    if not (quota.isdecimal() and period.isdecimal() and int(quota) and int(period)):
        return None  # "max", or -1
    return int(quota) / int(period)


def whole_cpus(quota: float) -> int:
    """Return how many threads a quota keeps busy, rounded up."""
    return max(1, math.ceil(quota))
