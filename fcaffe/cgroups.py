"""The limits of this process's control groups, by which containers and batch systems limit memory and CPUs.

Groups are nested, and the tightest limit counts. Only Linux has control groups; only version 2 of them is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")  # of the file system; tests replace it


def free_memory(swap: int = 0) -> int | None:
    """Return the bytes that this process's groups can still allocate; None if no group has a limit.

    The kernel's cache of file pages counts as free, and so does the part of the machine's free `swap` that the groups
    may use.
    """
    free = [left for group in groups() if (left := _free(group, swap)) is not None]
    return max(0, min(free)) if free else None


def cpu_quota() -> float | None:
    """Return the CPUs' worth of time that this process's groups may use; None if no group has a quota."""
    quotas = [quota for group in groups() if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def groups() -> Iterator[Path]:
    """Yield the folders of this process's group and of its visible ancestors.

    In a container the path of the group may be the host's. Then the mounted group is the process's own.
    """
    try:
        own = re.search(r"^0::/(.*)$", (ROOT / "proc/self/cgroup").read_text(), re.MULTILINE)
    except OSError:
        return
    path = ROOT / "sys/fs/cgroup"
    if not (path / "cgroup.controllers").exists():  # groups of version 1
        return
    folders = [path]
    for part in own[1].split("/") if own and ".." not in own[1] else ():
        folders.append(path := path / part)
    yield from (folder for folder in reversed(folders) if folder.is_dir())


def _text(group: Path, name: str) -> str:
    """Return the content of a file of a group; "" if there is no such file."""
    try:
        return (group / name).read_text().strip()
    except OSError:
        return ""


def _number(group: Path, name: str) -> int | None:
    """Return the number in a file of a group; None if there is no such file, or "max" in it."""
    text = _text(group, name)
    return int(text) if text.isdecimal() else None


def _free(group: Path, swap: int) -> int | None:
    """Return the bytes that a group has left; None if it has no limit."""
    limits = [limit for name in ("memory.max", "memory.high") if (limit := _number(group, name)) is not None]
    if not limits:
        return None
    stat = dict(line.split() for line in _text(group, "memory.stat").splitlines())
    used = _number(group, "memory.current") or 0
    cache = sum(int(stat.get(name, 0)) for name in ("inactive_file", "active_file", "slab_reclaimable"))
    swappable = _number(group, "memory.swap.max")
    if swappable is not None:
        swap = max(0, min(swap, swappable - (_number(group, "memory.swap.current") or 0)))
    return min(limits) - used + min(cache, used) + swap


def _quota(group: Path) -> float | None:
    """Return the CPUs' worth of time that a group may use; None if it has no quota."""
    quota, _, period = _text(group, "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() else None
