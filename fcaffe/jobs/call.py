"""Hosts, seen from the launcher's: which is this one, and how a process starts on another one."""

import json
import os
import shlex
import socket
import sys

from fcaffe.jobs.processes import AGENT, FOLDER, dies_with
from fcaffe.jobs.started import host_name

SSH = "ssh -T -o BatchMode=yes -o ConnectTimeout=10"
OF_CONTAINERS = ("kubectl", "oc")  # they pass words on to no shell


def bare(host: str) -> str:
    """The name of a host without the user for ssh."""
    return host.rpartition("@")[2]


def is_here(host: str) -> bool:
    """Whether a name or address is of this host. Looks it up, which may take long."""
    if host in ("localhost", host_name(), socket.gethostname()):
        return True
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def remote_command(host: str, command: str, shell: str = "") -> list[str]:
    """The words that run a shell's command on another host: by `shell`, or by srun within a Slurm job, or by ssh."""
    if "SLURM_STEP_ID" in os.environ and not shell:
        job, cpus = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_CPUS_ON_NODE", "1")
        words = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}"]
        return [*words, f"--nodelist={host}", "--mem=0", "--mpi=none", "--quiet", "sh", "-c", command]
    words = shlex.split(shell or SSH)
    if os.path.basename(words[0]) in OF_CONTAINERS:
        return [*words, host, "--", "sh", "-c", command]
    return [*words, host, command]


def run_remote_agent(host: str, folder: str, shell: str) -> int:
    """Become the remote shell to the agent of another host; return only if that is not possible."""
    dies_with(os.getppid())()
    variables = [f"PYTHONPATH={FOLDER}"]
    variables += [f"{name}={os.environ[name]}" for name in ("LD_LIBRARY_PATH",) if name in os.environ]
    agent = [*variables, *AGENT, json.dumps({"folder": folder})]
    command = remote_command(host, f"cd / && exec env {shlex.join(agent)}", shell)
    # srun would take the variables of this process's own step for options.
    own = {n: value for n, value in os.environ.items() if n == "SLURM_CONF" or not n.startswith("SLURM_")}
    try:
        os.execvpe(command[0], command, own)
    except OSError as problem:
        print(f"{command[0]}: {problem.strerror}", file=sys.stderr)
        return 127
