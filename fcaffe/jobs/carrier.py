"""Carriers: a process at each end of a link between hosts, which knows whether the link works.

A launcher or an agent may be stopped, and then is silent, although the link works. So each of them talks by pipes to a
carrier on its own host. The carriers pass frames on over a remote shell, and send one another a sign of life every
second. If no sign comes the link is cut, and both close their pipes. So a pipe that is open means that the peer will
answer, and one that is closed that it will not.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from subprocess import PIPE

from fcaffe.jobs.frames import END, SIGN, first_message, frame, message
from fcaffe.jobs.loop import Loop, Stream, own
from fcaffe.jobs.processes import AGENT, FOLDER, JOB
from fcaffe.jobs.silences import CALL
from fcaffe.jobs.started import host_name

SSH = "ssh -T -o BatchMode=yes -o ConnectTimeout=10"
OF_CONTAINERS = ("kubectl", "oc")  # they pass words on to no shell


class Carrier:
    """Passes on what comes between `near`, a launcher or an agent, and the carrier at the far end."""

    def __init__(self, near: tuple[int, int], far: tuple[int, int], first: float, silence: float) -> None:
        self.loop = Loop()
        self.near = Stream(self.loop, *near, self._from_near)
        self.far = Stream(self.loop, *far, self._from_far)
        self.limit, self.silence = first, silence  # until the first sign, and between signs
        self.unheard = 0.0
        self.loop.every(1.0, self._tick)

    def run(self) -> bool:
        """Return when one end has closed its stream, whether the link is cut."""
        while self.near.open and self.far.open and not self.is_cut:
            self.loop.turn()
        if self.is_cut:
            self.near.put(message(cut=self.limit))
            self.far.close()
        for rest in (self.near, self.far):
            while rest.open and not rest.is_flushed and not (rest is self.far and self.is_cut):
                self.loop.turn()
        return self.is_cut

    @property
    def is_cut(self) -> bool:
        return self.unheard > self.limit

    def _from_near(self, kind: int, content: bytes) -> None:
        if kind != END:
            self.far.put(frame(kind, content))

    def _from_far(self, kind: int, content: bytes) -> None:
        if kind == SIGN:
            self.unheard, self.limit = 0.0, self.silence
        elif kind != END:
            self.unheard = 0.0
            self.near.put(frame(kind, content))

    def _tick(self, passed: float) -> None:
        self.unheard += passed
        self.far.put(frame(SIGN, b""))


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
    if "SLURM_JOB_ID" in os.environ and not shell:
        job, cpus = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_CPUS_ON_NODE", "1")
        words = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}"]
        words += ["--unbuffered"]  # or it holds frames back until a line ends
        return [*words, f"--nodelist={host}", "--mem=0", "--mpi=none", "--quiet", "sh", "-c", command]
    words = shlex.split(shell or SSH)
    if os.path.basename(words[0]) in OF_CONTAINERS:
        return [*words, host, "--", "sh", "-c", command]
    return [*words, host, command]


def carry_to(host: str, folder: str, shell: str, silence: float) -> int:
    """Be the launcher's carrier to the agent of another host, which gets the environment of this process; returns the
    exit code of the remote shell."""
    variables = [f"PYTHONPATH={FOLDER}"]
    variables += [f"{name}={os.environ[name]}" for name in ("LD_LIBRARY_PATH",) if name in os.environ]
    words = [*variables, *AGENT, json.dumps({"folder": folder, "silence": silence})]
    command = remote_command(host, f"cd / && exec env {shlex.join(words)}", shell)
    # srun would take the variables of this process's own step for options. An ssh with a master process for several
    # connections may leave that behind, and it is not the job's to end.
    unfit = {name for name in os.environ if name.startswith("SLURM_") and name != "SLURM_CONF"} | {JOB}
    environment = {name: value for name, value in os.environ.items() if name not in unfit}
    try:
        process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, env=environment, bufsize=0)
    except OSError as problem:
        print(f"{command[0]}: {problem.strerror}", file=sys.stderr)
        return 127
    carrier = Carrier((os.dup(0), os.dup(1)), (own(process.stdout), own(process.stdin)), CALL, silence)
    carrier.far.put(message(**os.environ))
    is_cut = carrier.run()
    carrier.far.close()
    try:
        return process.wait(0 if is_cut else silence)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def carry_from(folder: str, silence: float) -> int:
    """Start the agent of this host with the environment that comes first, and be its carrier."""
    signal.alarm(int(CALL))  # which ends this process if no environment has come by then
    environment = first_message(0)
    signal.alarm(0)
    words = [*AGENT, json.dumps({"folder": folder})]
    process = subprocess.Popen(words, stdin=PIPE, stdout=PIPE, env=environment, cwd="/", bufsize=0)
    carrier = Carrier((own(process.stdout), own(process.stdin)), (0, 1), CALL, silence)
    carrier.run()
    carrier.near.close()
    return process.wait()
