"""The agent: a process of its own on each host that starts the ranks there, watches them, and cleans up behind them.

It must outlive the ranks: a rank can be killed, or hang with Python's lock held. The launcher starts it, on other hosts
by a remote shell. It loads little of fcaffe, so that it starts at once and stays small.
"""

from __future__ import annotations

import json
import signal
import sys

from fcaffe.jobs import processes
from fcaffe.jobs.call import is_here, run_remote_agent
from fcaffe.jobs.loop import Agent
from fcaffe.jobs.ranks import TO_END


def _stay(number: int, frame: object) -> None:
    """Ignore a signal: the agent ends after the ranks."""


def main(folder: str, host: str = "", stderr: int | None = None, shell: str = "") -> int:
    """Be the agent of this host for a job in that folder.

    The launcher gives the `host` for which it starts this process, which reaches it by the remote shell if it is
    another one. So neither a slow look-up of a name nor a host that does not answer keeps the launcher waiting.
    """
    if host and not is_here(host):
        return run_remote_agent(host, folder, shell)
    for number in TO_END:
        signal.signal(number, _stay)  # not SIG_IGN, which the ranks would inherit
    processes.remove_memory()  # of jobs before this one, of which nothing was left to do so
    Agent(folder, stderr).run()
    processes.remove_memory(processes.PATIENCE)
    return 0


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
