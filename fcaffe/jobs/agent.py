"""The agent: a process of its own on each host that starts the ranks there, watches them, and cleans up behind them.

It must outlive the ranks: a rank can be killed, or hang with Python's lock held. The launcher starts it, on other hosts
by a remote shell. It loads little of fcaffe, so that it starts at once and stays small. Frames of the launcher come
from standard input, and the agent's own go to standard output (`frames.py`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import selectors
import shlex
import signal
import socket
import sys
import time
from typing import Any

from fcaffe import log
from fcaffe.jobs import processes
from fcaffe.jobs.blame import cause_of_death, names, with_stopped
from fcaffe.jobs.frames import FrameError, Link, Message
from fcaffe.jobs.output import RankOutput
from fcaffe.jobs.pmi import PmiServer
from fcaffe.jobs.processes import AGENT, FOLDER, JOB, LAUNCHER, dies_with
from fcaffe.jobs.ranks import ENDING, FAILED, GONE, LIVE, SILENCE, TO_END, Clock, Rank, overdue, start_rank
from fcaffe.jobs.started import FATAL, host_name
from fcaffe.parallel.watchdog import STARTING

TICK, LOOK = 0.1, 0.5  # seconds between reads of messages, and between checks for hung ranks
SSH = "ssh -T -o BatchMode=yes -o ConnectTimeout=10"
OF_CONTAINERS = ("kubectl", "oc")  # they pass words on to no shell


class Agent:
    """Starts the ranks that one order of the launcher describes. `stderr` is a descriptor of the launcher's standard
    error, if that is on this host: the agent writes there if the launcher has died."""

    def __init__(self, folder: str, stderr: int | None) -> None:
        self.folder, self.stderr = folder, stderr
        self.selector = selectors.DefaultSelector()
        self.ranks: list[Rank] = []
        self.hosts: list[str] = []  # of all ranks of the job
        self.timeout = 0.0
        self.silence = SILENCE if stderr is None else 0.0
        self.unheard = 0.0  # seconds without a frame of the launcher
        self.orphaned = False
        self.told = False  # the cause of the end is known, and no other one is sent
        self.clock = Clock()
        self.link = Link(self.selector, 0, 1, self._hear_launcher)
        self.output = RankOutput(self.link)

    def run(self) -> None:
        """Return when all ranks have gone, or when the launcher has and there are none."""
        if os.path.isdir(self.folder):
            self.link.send(ready=os.getpid(), here=self.stderr is not None)
        else:
            self.link.send(unfit=f"there is no folder {self.folder} there, in which the job was started")
            return
        looked = time.monotonic()
        while not (all(rank.state == GONE for rank in self.ranks) and (self.ranks or self.orphaned)):
            for key, _ in self.selector.select(TICK):
                key.data()
            for rank in self.ranks:
                self._hear(rank)
            self.output.forward()
            self._reap()
            if (passed := time.monotonic() - looked) >= LOOK:
                looked += passed
                self._look(min(passed, 4 * LOOK))
                self.report()
        self._finish()

    # --- the launcher -------------------------------------------------------------------------------------------------

    def _hear_launcher(self, message: Message | str | None) -> None:
        self.unheard = 0.0
        if not isinstance(message, dict) or "unfit" in message:
            self.orphaned = True
        elif "program" in message:
            self._start(**message)
        elif "values" in message:
            self.pmi.release(message["values"])
        elif "signal" in message and self.ranks[0].state != GONE:
            self.ranks[0].process.send_signal(message["signal"])
        elif "kill" in message:
            self._kill()
            self.orphaned |= not self.ranks

    def report(self) -> None:
        self.link.send(ranks=with_stopped([rank.slot for rank in self.ranks]))

    def _end(self, **fault: Any) -> None:
        """End all ranks after a fault, of which this is the `message` or the slot that is `overdue`."""
        self.tell(fault=True, **fault)
        self._kill()

    def tell(self, code: int = FATAL, **cause: Any) -> None:
        """Tell why the job ends, behind all that the ranks have printed before."""
        if not self.told:
            self.told = True
            self.output.forward()
            self.report()
            self.link.send(cause={"code": code, **cause})

    # --- the ranks ----------------------------------------------------------------------------------------------------

    def _start(
        self,
        program: list[str],
        environment: dict[str, str],
        order: Message,
        hosts: list[str],
        first: int,
        count: int,
        mapping: str,
        timeout: float,
        silence: float,
    ) -> None:
        self.hosts, self.timeout = hosts, timeout
        self.silence = silence if self.silence else 0.0
        self.name = f"{environment[JOB]}.{first}"  # of the processes on this host; a machine may emulate several
        self.pmi = PmiServer(
            environment[JOB], first, count, len(hosts), mapping, lambda values: self.link.send(put=values)
        )
        try:
            for number in range(first, first + count):
                own = {**environment, **self.pmi.environment(number), JOB: self.name}
                rank = start_rank(number, program, self.folder, own, order, self.output.targets)
                self.ranks.append(rank)
                self.selector.register(rank.socket, selectors.EVENT_READ, functools.partial(self._hear, rank))
        except OSError as problem:
            why = f"{problem.filename or program[0]}: {problem.strerror}"
            self._end(message=f"rank {number} on {hosts[number]} cannot be started: {why}")
        for target in self.output.targets:
            os.close(target)

    def _wait_for_tick(self, rank: Rank) -> None:
        """Once MPI has started a rank's messages wait for the next tick: most are heartbeats."""
        with contextlib.suppress(KeyError):
            self.selector.unregister(rank.socket)

    def _hear(self, rank: Rank) -> None:
        try:
            for message in rank.messages():
                if isinstance(message, str):
                    self.pmi.serve(rank.socket, message)
                elif "beat" in message and rank.state in LIVE:
                    rank.enter(*message["beat"])
                    if rank.state != STARTING:
                        self._wait_for_tick(rank)
                elif "ended" in message:
                    self.told = True  # whatever happens from now on is no fault
                    rank.enter(ENDING, "the end", rank.iteration)
                    self.output.forward()
                    self.link.send(ended=message["ended"])
                elif "error" in message:
                    rank.enter(FAILED, "the end", rank.iteration)
                    self.tell(**message["error"])
        except FrameError as problem:
            self._end(message=f"{names([rank.slot], self.hosts)} sends {problem}")
        if self.pmi.aborted is not None:
            who = names([rank.slot], self.hosts)
            self._end(message=f"the MPI of {who} gave up with code {self.pmi.aborted}; what it said stands above")

    def _reap(self) -> None:
        """Find the ranks whose process has ended. One that ended too early is a fault."""
        for rank in [rank for rank in self.ranks if rank.state != GONE and rank.process.poll() is not None]:
            self._hear(rank)  # its last messages
            before, rank.state = rank.slot, GONE
            self._wait_for_tick(rank)
            if before.state in LIVE:
                self.tell(**cause_of_death(before, rank.process.returncode, self.hosts))
                self._kill()

    def _look(self, seconds: float) -> None:
        """Find ranks that hang, or do not leave, and a launcher that is lost."""
        self.unheard += seconds
        self.orphaned |= 0 < self.silence < self.unheard
        self.clock.tick(self.ranks, seconds)
        late = [rank for rank in self.ranks if overdue(rank, self.timeout)]
        for rank in late:
            if rank.state == ENDING:
                how_long = f"{names([rank.slot], self.hosts)} runs on for {rank.quiet:.0f} s after its training"
                self.link.send(warning=f"{how_long}, in threads of user code, and is ended")
            if rank.state in (ENDING, FAILED):
                rank.kill()
        hung = [rank for rank in late if rank.state in LIVE]
        if self.orphaned and any(rank.state != GONE for rank in self.ranks):
            self._mourn(names([rank.slot for rank in self.ranks], self.hosts))
        elif hung:
            self._end(overdue=hung[0].slot)

    def _mourn(self, who: str) -> None:
        """End all ranks, since the launcher has died or cannot be reached."""
        if self.stderr is not None and not self.told:
            os.dup2(self.stderr, 2)
            launcher = f"fcaffe's launcher (process {os.environ.get(LAUNCHER)}) on {self.hosts[0]}"
            log.fatal(f"{launcher} died; this ends {who}")
        self._end(message=f"{who} got no order of fcaffe's launcher for {self.unheard:.0f} s")

    def _kill(self) -> None:
        self.told = True
        for rank in self.ranks:
            rank.kill()

    def _finish(self) -> None:
        """Forward the last output, end what user code has left, and wait for the launcher to take all frames."""
        if self.ranks:
            processes.end_processes(self.name)
        self.output.forward()
        end = time.monotonic() + processes.LAST_WORDS
        while self.link.queue and time.monotonic() < end:
            select.select([], [1], [], TICK)
            self.link.write()


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
