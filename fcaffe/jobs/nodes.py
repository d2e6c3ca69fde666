"""The nodes on which srun or MPICH's mpiexec has started one process each, to run fcaffe's own agents there.

The first of these processes becomes the launcher of the job, and the others end at once. It starts the agents by srun
within the same allocation, or by ssh. So fcaffe handles restarts and lost nodes itself. MPI's launcher would end all
ranks when one of them ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import subprocess

from fcaffe.errors import UsageError
from fcaffe.jobs.started import Start, host_name

# Slurm says that a value of PMI-1 may have 1024 characters, but it cuts a message there that has the value's name, too.
# MPICH needs an even number: it divides an odd one differently when it writes values and when it reads them.
LONGEST_VALUE = 896


def nodes_of(start: Start) -> list[str]:
    """The nodes of the processes that a launcher has started; empty for all but the first process. Raises UsageError.

    In this process MPI must not have been started.
    """
    if "SLURM_STEP_NODELIST" in os.environ:
        names, first = _names_by_slurm(os.environ["SLURM_STEP_NODELIST"]), os.environ["SLURM_PROCID"] == "0"
    elif "PMI_FD" in os.environ:
        names, first = _names_by_pmi(start), start.rank == 0
    else:
        raise UsageError(
            f"{start}: it cannot start fcaffe's agents. Leave out --workers-per-host, --restarts and --elastic, or use "
            "srun, MPICH's mpiexec, or --hosts without a launcher"
        )
    if first and len(set(names)) < start.size:
        raise UsageError(
            f"{start.launcher} started {start.size} processes on {len(set(names))} hosts: for --restarts and --elastic "
            "start one process on each host, and give --workers-per-host N"
        )
    return names if first else []


def _names_by_slurm(nodes: str) -> list[str]:
    try:
        done = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True)
        problem = done.stderr.strip() or f"exit code {done.returncode}"
    except OSError as error:
        problem, done = str(error.strerror), None
    if done is None or done.returncode:
        raise UsageError(f"scontrol cannot say which hosts {nodes} are ({problem}): name them by --hosts, without srun")
    return done.stdout.split()


def _names_by_pmi(start: Start) -> list[str]:
    """Exchange host names by way of the launcher's key-value space."""
    with socket.socket(fileno=os.dup(int(os.environ["PMI_FD"]))) as link, link.makefile("rw") as file:

        def ask(question: str, answer: str = "") -> str:
            file.write(f"cmd={question}\n")
            file.flush()
            return file.readline().strip().partition(f"{answer}=")[2]

        ask("init pmi_version=1 pmi_subversion=1")
        space = ask("get_my_kvsname", "kvsname").split()[0]
        ask(f"put kvsname={space} key=fcaffe-{start.rank} value={host_name()}")
        ask("barrier_in")
        names = [ask(f"get kvsname={space} key=fcaffe-{rank}", "value") for rank in range(start.size)]
        ask("finalize")
        return names


def shorten_values() -> None:
    """Leave a process between this rank and Slurm's PMI-1, which makes MPICH send values of LONGEST_VALUE."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        os.dup2(ours.fileno(), int(os.environ["PMI_FD"]))
        return
    ours.close()
    ends = {theirs: socket.socket(fileno=int(os.environ["PMI_FD"]))}
    ends |= {other: one for one, other in ends.items()}
    while True:
        for source in select.select([*ends], [], [])[0]:
            data = b""
            with contextlib.suppress(OSError):
                data = source.recv(1 << 16)
                ends[source].sendall(re.sub(rb"vallen_max=\d+", b"vallen_max=%d" % LONGEST_VALUE, data))
            if not data:
                os._exit(0)
