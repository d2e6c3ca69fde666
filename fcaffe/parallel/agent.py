"""The agent of one host: a process of its own that starts the ranks there or adopts them, watches them, and cleans up.

It must outlive the ranks: when one of them is killed, MPI kills the others before they could say which. And a rank can
hang with Python's lock held. The launcher starts the agent of a job on one host, and the agent starts the ranks. Where
mpiexec or srun starts the ranks, the first rank of each host starts the agent. It tells the launcher by records on
standard error how far training is and why it ends (`records.py`), and takes its signals from standard input.

It loads little of fcaffe, so that it starts at once and stays small.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fcaffe.parallel.adopted import AdoptedRanks
from fcaffe.parallel.local_ranks import LocalRanks
from fcaffe.parallel.network import Network
from fcaffe.parallel.processes import remove_memory


def spawn(
    setup: dict[str, Any], descriptors: Sequence[int], environment: Mapping[str, str], **streams: Any
) -> subprocess.Popen[bytes]:
    """Start an agent. `setup` has the arguments of LocalRanks or AdoptedRanks; the agent inherits the descriptors."""
    read, write = os.pipe()
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", "fcaffe.parallel.agent", str(read)],
        pass_fds=[read, *descriptors],
        env={**environment, "PYTHONPATH": path},
        cwd="/",
        start_new_session=True,  # mpiexec kills those of ranks, the terminal's Ctrl-C that of the launcher
        **streams,
    )
    os.close(read)
    with os.fdopen(write, "w") as file:
        json.dump(setup, file)
    return process


def _stay(number: int, frame: object) -> None:
    """The agent ends when the ranks have ended."""


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stay)  # not SIG_IGN, which the ranks would inherit
    with open(int(sys.argv[1])) as file:
        setup: dict[str, Any] = json.load(file)
    remove_memory()  # of jobs before this one, of which nothing was left to do so
    if "program" in setup:
        code = LocalRanks(**setup).watch()
    else:
        network = Network(
            [(name, other, port) for name, other, port in setup.pop("agents")],
            setup.pop("socket"),
            bytes.fromhex(setup.pop("key")),
            setup.pop("number"),
        )
        code = AdoptedRanks(mmap.mmap(setup.pop("table"), 0), network=network, **setup).watch()
    remove_memory()
    return code


if __name__ == "__main__":
    sys.exit(main())
