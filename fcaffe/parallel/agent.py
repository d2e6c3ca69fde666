"""The agent: a process of its own that starts the ranks of a host, watches them, and cleans up.

It must outlive the ranks: when one of them is killed, MPI kills the others before they can report which one. And a rank
can hang with Python's lock held. The launcher starts an agent on each host, on other hosts by ssh, and the agents start
the ranks. If mpiexec or srun starts the ranks, each rank has an agent (`forked_rank.py`). Agents write records to
standard error, from which the launcher learns what the ranks do and why they end (`records.py`). They read its orders
from standard input.

It loads little of fcaffe, so that it starts at once and stays small.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

from fcaffe.parallel import records
from fcaffe.parallel.forked_rank import ForkedRank
from fcaffe.parallel.local_ranks import LocalRanks
from fcaffe.parallel.processes import DAEMONS, dies_with, process_name, remove_memory

PATIENCE, LONG_PATIENCE = 0.3, 1.6  # seconds in which memory may become free: after the ranks' end, after the agent's


def _stay(number: int, frame: object) -> None:
    """Ignore a signal: the agent ends after the ranks."""


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stay)  # not SIG_IGN, which the ranks would inherit
    remove_memory()  # of jobs before this one, of which nothing was left to do so
    code = _watch_over(json.loads(sys.argv[1])) if len(sys.argv) > 1 else _start()
    remove_memory(PATIENCE)
    return code


def _start() -> int:
    """Start the ranks that the first order on standard input describes; 0 if there is none."""
    records.send({"ready": os.getpid()})
    orders = records.Orders()
    while (received := orders.read()) is not None:
        if received:
            ranks = LocalRanks(orders, **received[0])
            ranks.obey(received[1:])
            return ranks.watch()
    return 0


def _watch_over(setup: dict[str, Any]) -> int:
    """Watch over a rank of MPI's launcher."""
    if process_name(os.getppid()) in DAEMONS:
        dies_with(os.getppid())()
    _clean_up_behind()
    return ForkedRank(**setup).watch()


def _clean_up_behind() -> None:
    """Leave a process that removes what the job leaves in /dev/shm: the launcher may kill all others at once."""
    read, write = os.pipe()
    if os.fork():
        os.close(read)  # the other end closes with this process
        return
    os.setsid()
    os.close(write)
    for handle in map(int, os.listdir("/proc/self/fd")):
        if handle != read:
            with contextlib.suppress(OSError):
                os.close(handle)
    os.read(read, 1)
    remove_memory(LONG_PATIENCE)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
