"""Error messages of dead and hung ranks, which name the one that is to blame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from signal import SIGINT

from fcaffe.interruption import INTERRUPTED
from fcaffe.jobs.frames import Message
from fcaffe.jobs.processes import is_stopped
from fcaffe.jobs.ranks import LOADING, MARGIN, TO_END, Slot
from fcaffe.parallel.watchdog import STARTING, WAITING, WORKING

STOPPED = "stopped"


def with_stopped(slots: Iterable[Slot]) -> list[Slot]:
    """These slots, with the state STOPPED for processes of this host that SIGSTOP has stopped."""
    return [slot._replace(state=STOPPED) if is_stopped(slot.pid) else slot for slot in slots]


def hang_message(
    first: Slot,
    slots: Sequence[Slot],
    others: Sequence[Slot],
    silent: Sequence[Slot],
    hosts: Sequence[str],
    timeout: float,
) -> str:
    """Names a rank that cannot be reached, else one that is stopped, else one that does not itself wait for others,
    else one that is behind.

    Args:
        first: the rank that is overdue.
        slots: the ranks of its host.
        others: those of other hosts, as they were last heard of.
        silent: those of `others` whose hosts send nothing any more.
        hosts: the host of each rank.
        timeout: in seconds.
    """
    limit = f"within {timeout:g} s (--timeout)"
    starting = [slot for slot in slots if slot.state == STARTING]
    everyone = [slot for slot in (*slots, *others) if slot.state in (WORKING, WAITING, STOPPED)]
    stopped = [slot for slot in everyone if slot.state == STOPPED]
    if starting and not stopped:
        late = [slot for slot in starting if slot.operation == LOADING] or starting
        limit = f"within {timeout + MARGIN:g} s (--timeout and {MARGIN:g} s)"
        return f"the ranks did not find one another {limit}, since {names(late, hosts)} did not come out of the start"
    if silent and not stopped:
        stuck = f"{names([first], hosts)} did not come out of {first.where()} {limit}"
        if len(silent) == len(others) and len(set(hosts)) > 2:
            return f"{stuck}: {hosts[first.rank]} is cut off from all other hosts"
        return f"{names(silent, hosts)} is cut off from the other hosts since {silent[0].where()}: {stuck}"
    working = [slot for slot in everyone if slot.state == WORKING]
    missing = set(range(len(hosts))) - {slot.rank for slot in (*slots, *others)}
    if not stopped and not working and missing:
        unknown = ", ".join(f"rank {rank} on {hosts[rank]}" for rank in sorted(missing)[:16])
        return (
            f"{names([first], hosts)} did not come out of {first.where()} {limit}: it waits for one on another host, "
            f"which hangs or cannot be reached: {unknown}"
        )
    behind = [slot for slot in everyone if slot.iteration == min(slot.iteration for slot in everyone)]
    late = stopped or working or behind or [first]
    waiting = sorted(slot.rank for slot in everyone if slot.state == WAITING and slot not in late)
    return (
        f"{names(late, hosts)} did not come out of {late[0].where()} {limit}"
        + (": stopped by a signal (SIGSTOP)" if stopped else "")
        + (f"; waiting for it: {_some(waiting)}" if waiting else "")
    )


def cause_of_death(slot: Slot, code: int, hosts: Sequence[str]) -> Message:
    """The cause of a job's end, after a rank has ended with this exit code, or by the signal -`code`."""
    who = names([slot], hosts)
    asked = SIGINT if code == INTERRUPTED and slot.operation == LOADING else -code
    if asked in TO_END:
        return {"code": 128 + asked, "signal": asked}
    if slot.state == STARTING:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        message = f"{who} {how}, before the ranks had started; what it said stands above"
    else:
        how = f"it ended with exit code {code}" if code >= 0 else "killed, or crashed outside of Python"
        message = f"{who} died in {slot.where()}: {how}"
    return {"fault": True, "message": message}


def names(slots: Iterable[Slot], hosts: Sequence[str]) -> str:
    groups: dict[str, list[Slot]] = {}
    for slot in slots:
        groups.setdefault(hosts[slot.rank], []).append(slot)
    words = []
    for host, group in groups.items():
        if len(group) == 1:
            words.append(f"rank {group[0].rank} (process {group[0].pid}) on {host}")
        else:
            words.append(f"ranks {_some([slot.rank for slot in group])} on {host}")
    return " and ".join(words)


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 16 else f"{ranks[0]}, {ranks[1]} ... {ranks[-1]}"
