"""The agent: a process of its own on each host that starts the ranks there.

It must outlive the ranks: a rank can be killed, or hang with Python's lock held. It loads little of fcaffe until the
launcher's order comes, so that it starts at once. Then it imports what the ranks need and forks them, so that they
share the time and the memory of the imports. No thread of fcaffe and no MPI may start before the fork. Frames of the
launcher come from standard input, and its own go to standard output. On other hosts a remote shell and two carriers
lie between (`carrier.py`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module

from fcaffe.jobs import processes
from fcaffe.jobs.carrier import carry_from, carry_to, is_here
from fcaffe.jobs.processes import TO_END
from fcaffe.jobs.supervisor import Supervisor


def _stay(number: int, frame: object) -> None:
    """Ignore a signal: the agent ends after the ranks."""


def main(folder: str, host: str = "", stderr: int | None = None, shell: str = "", silence: float = 0.0) -> int:
    """Be the agent of this host for a job in that folder.

    The launcher gives the `host` for which it starts this process, which reaches it by the remote shell if it is
    another one. So neither a slow look-up of a name nor a host that does not answer keeps the launcher waiting.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or ends of ranks would be lost, where the caller ignores it
    for number in TO_END:
        signal.signal(number, _stay)  # not SIG_IGN, which a process inherits that this one starts
    if host and not is_here(host):
        return carry_to(host, folder, shell, silence)
    if not host and silence:
        return carry_from(folder, silence)
    processes.remove_memory()  # of jobs before this one, of which nothing was left to do so
    supervisor = Supervisor(folder, stderr)
    if channel := supervisor.run():
        if stderr is not None:
            os.close(stderr)
        order = supervisor.order
        return int(import_module(order["module"]).run(channel, order["order"]))
    processes.remove_memory(processes.PATIENCE)
    return 0


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
