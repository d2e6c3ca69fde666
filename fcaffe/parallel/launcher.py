"""Runs the ranks of a job once: by the agents of its hosts, which this process starts, or by mpiexec."""

from __future__ import annotations

import os
import queue
import secrets
import shlex
import socket
import subprocess
from collections.abc import Callable, Collection, Sequence
from typing import Any

from fcaffe.parallel.job import SILENCE, Job
from fcaffe.parallel.member import Events, Member, Output
from fcaffe.parallel.mpiexec import Mpiexec, outside_environment
from fcaffe.parallel.nodes import remote_shell
from fcaffe.parallel.placement import Plan
from fcaffe.parallel.pmi import process_mapping
from fcaffe.parallel.processes import AGENT, FOLDER, JOB, LAUNCHER, dies_with
from fcaffe.parallel.started import LAUNCHED, host_name


class Launcher:
    """Starts `program` as the ranks of a plan. `stops` are the signals after which nothing is started again."""

    def __init__(self, plan: Plan, program: Sequence[str], stops: Collection[int]) -> None:
        self.plan = plan
        self.program = program
        self.stops = stops
        self.events: Events = queue.SimpleQueue()
        self.output = Output()
        self.environment = {**outside_environment(), LAUNCHER: str(os.getpid())}

    def run_mpiexec(self, mpiexec: Mpiexec, *more: str) -> Job:
        """Run the ranks with `more` words by this mpiexec."""
        plan, environment = self.plan, self._environment(self.plan.workers)
        command = mpiexec.command(plan.workers, plan.hosts, plan.mpi_args, [*self.program, *more], environment)

        def start() -> list[Member]:
            process = self._popen(command, environment)
            return [Member(process, "", self.events, self.output, name=command[0])]

        hosts = plan.hosts or ((host_name(), plan.workers),)
        names = [host for host, count in hosts for _ in range(count)]
        return self._run(shlex.join(command), start, False, name=environment[JOB], hosts=names)

    def run_agents(self, *more: str) -> Job:
        """Run the ranks with `more` words by an agent on each host of the plan."""
        hosts = self.plan.hosts or ((host_name(), self.plan.workers),)
        return self.run_on(hosts, lambda: [self.start_agent(host) for host, _ in hosts], more)

    def run_on(
        self,
        hosts: Sequence[tuple[str, int]],
        start: Callable[[], Sequence[Member]],
        more: Sequence[str],
        ends_early: Callable[[Job], bool] = lambda job: False,
    ) -> Job:
        """Run so many ranks on each host by the agents that `start` returns, numbered in this order."""
        counts = [count for _, count in hosts]
        names = [bare(host) for host, count in hosts for _ in range(count)]
        environment = self._environment(len(names))
        program = [*self.program, *more]

        def ordered() -> Sequence[Member]:
            members = start()
            for index, member in enumerate(members):
                member.order(
                    program=program,
                    environment={**environment, "PMI_HOSTNAME": member.host},
                    hosts=names,
                    first=sum(counts[:index]),
                    count=counts[index],
                    mapping=process_mapping(counts),
                    timeout=self.plan.timeout,
                    silence=min(SILENCE, self.plan.timeout) if member.remote else 0.0,
                    folder=os.getcwd(),
                    stderr=member.stderr,
                )
            return members

        where = f" on {','.join(f'{name}:{count}' for name, count in hosts)}" if self.plan.hosts else ""
        told = f"{len(names)} x {shlex.join(program)}{where}"
        return self._run(told, ordered, True, name=environment[JOB], hosts=names, ends_early=ends_early)

    def start_agent(self, host: str, output: Output | None = None) -> Member:
        """Start the agent of a host, which waits for an order. On this host it outlives this process, to say so and end
        the ranks."""
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        output = output or self.output
        if is_here(host):
            stderr = os.dup(2)
            try:
                process = subprocess.Popen(
                    AGENT, pass_fds=[stderr], env=self.environment, cwd=FOLDER, start_new_session=True, **streams
                )
                return Member(process, bare(host), self.events, output, stderr=stderr)
            finally:
                os.close(stderr)
        variables = [f"PYTHONPATH={FOLDER}"]
        variables += [f"{name}={os.environ[name]}" for name in ("LD_LIBRARY_PATH",) if name in os.environ]
        command = remote_shell(host, f"cd / && exec env {shlex.join([*variables, *AGENT])}")
        # srun would take the variables of this process's own step for options.
        own = {n: value for n, value in self.environment.items() if n == "SLURM_CONF" or not n.startswith("SLURM_")}
        return Member(self._popen(command, own), bare(host), self.events, output, remote=True)

    def _environment(self, workers: int) -> dict[str, str]:
        """That of the ranks of one run."""
        return {**self.environment, LAUNCHED: str(workers), JOB: secrets.token_hex(8)}

    def _popen(self, command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # the terminal's Ctrl-C goes to the launcher alone
            preexec_fn=dies_with(os.getpid()),
        )

    def _run(self, command: str, start: Callable[[], Sequence[Member]], by_agent: bool, **more: Any) -> Job:
        plan = self.plan
        job = Job(
            command,
            start,
            by_agent,
            timeout=plan.timeout,
            events=self.events,
            output=self.output,
            stops=self.stops,
            **more,
        )
        job.run()
        return job


def resuming(path: str | None) -> list[str]:
    """The words with which ranks go on from a state."""
    return [f"--snapshot={path}", "--weights="] if path else []


def bare(host: str) -> str:
    """The name of a host without the user for ssh."""
    return host.rpartition("@")[2]


def is_here(host: str) -> bool:
    """Whether a name or address is of this host."""
    if host in ("localhost", host_name(), socket.gethostname()):
        return True
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
