"""The flags of a command that runs on several workers: how they are started, and how they share the work."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np

from fcaffe import log
from fcaffe.cli.engine import NO_GPUS, TrainingGpus
from fcaffe.cli.flags import ELASTIC, FIXED, HOSTS, IMPORTS, SEVERAL, STARTED, WATCHED, Way, check_flags, flag
from fcaffe.errors import UsageError
from fcaffe.jobs.hosts import (
    DEFAULT_TIMEOUT,
    Elastic,
    Host,
    Hosts,
    Plan,
    parse_hosts,
    ranks_of_hosts,
    read_hostfile,
)
from fcaffe.jobs.world import World
from fcaffe.threads import VARIABLES, has_one_thread
from fcaffe.timeline import Timeline
from fcaffe.tree_order import nodes_of_workers

REJOIN = 60.0  # seconds
MOST_SHARDS = 4096


@dataclass(frozen=True)
class HostFlags:
    """The hosts of the workers, and how long one may be in one operation."""

    hosts: str = flag("HOST:N,...", "Start workers on these hosts, N on each.", needs=[STARTED])
    hostfile: str = flag("FILE", "The same from a file, a host on each line.", needs=[STARTED])
    remote_shell: str = flag(
        "WORDS",
        'What reaches other hosts, such as "kubectl exec -i" or a script (ssh).',
        "--remote-shell",
        needs=[STARTED, HOSTS],
    )
    timeout: int = flag(
        "SECONDS",
        f"End the job if a worker is in one operation for longer ({DEFAULT_TIMEOUT}); 0: never.",
        default=DEFAULT_TIMEOUT,
        least=0,
        needs=[WATCHED],
    )
    workers_per_host: int | None = flag(
        "N",
        "Workers on each host that does not say how many (1).",
        "--workers-per-host",
        default=None,
        type=int,
        least=1,
        needs=[STARTED, HOSTS],
    )


@dataclass(frozen=True)
class LaunchFlags(HostFlags):
    """The number of workers, their hosts, and what happens if one fails.

    Without a number of workers: as many as a launcher has started, or as the hosts have room for, else one.
    """

    workers: int | None = flag("N", "Number of workers, each an MPI rank on CPUs.", default=None, type=int, least=1)
    gpus: str = flag("N", "Train with N workers, each on a GPU of its own.", needs=[FIXED])
    restarts: int = flag(
        "N",
        "Start again up to N times, from the newest snapshot, if a worker dies or hangs.",
        default=0,
        least=0,
        needs=[STARTED, FIXED],
    )
    elastic: str = flag(
        "MIN:MAX",
        "Go on with fewer workers when a host is lost, and with more when it is back; from the newest snapshot.",
        needs=[STARTED, HOSTS],
    )
    rejoin: float = flag(
        "SECONDS",
        f"How long an elastic job waits for a lost host before it goes on without it ({REJOIN:g}).",
        default=REJOIN,
        least=0,
        needs=[STARTED, ELASTIC],
    )

    def plan(self, gpus: TrainingGpus = NO_GPUS, fits: Callable[[int], bool] = lambda workers: True) -> Plan | None:
        """The job that this process, which no launcher started, starts; None if it trains itself. Raises UsageError.

        With `restarts`, one worker gets a launcher and an agent too. `fits` returns whether this many workers can
        train.
        """
        if self.hosts and self.hostfile:
            raise UsageError("--hosts and --hostfile say the same thing: give one of them")
        alone = not (self.hosts or self.hostfile)
        on_gpus = gpus.workers(not alone)
        if self.workers and on_gpus and (alone or gpus.number) and self.workers != on_gpus:
            raise UsageError(f"{gpus} means {on_gpus} workers, not --workers {self.workers}: leave that out")
        wanted = self.workers or on_gpus or 0
        if alone:
            wanted = max(wanted, 1)
            return self._plan(wanted, ()) if wanted > 1 or self.restarts else None
        if gpus.listed:
            wanted = self.workers or 0
        each = self.workers_per_host or (on_gpus if gpus.listed else 0)
        may_change = self.elastic and self.hostfile
        if self.workers_per_host and all(count for _, count in self._hosts()) and not may_change:
            raise UsageError(
                "--workers-per-host has no effect, as each host says how many workers it has: leave it out"
            )
        if self.elastic:
            least, most = self._range()
            if wanted and wanted < least:
                raise UsageError(f"--workers {wanted}, but --elastic {self.elastic} needs {least}: leave --workers out")

            def read() -> Hosts:
                return ranks_of_hosts(0, [(name, count or each or 1) for name, count in self._hosts()])

            elastic = Elastic(least, min(most, wanted or most), self.rejoin, read, fits)
            return self._plan(most, elastic.hosts(), elastic)
        hosts = ranks_of_hosts(wanted, [(name, count or each or None) for name, count in self._hosts()])
        workers = sum(count for _, count in hosts)
        if workers == 1:
            raise UsageError(f"One worker, on {hosts[0][0]}: start it there, without --hosts")
        return self._plan(workers, hosts)

    def _plan(self, workers: int, hosts: Hosts, elastic: Elastic | None = None) -> Plan:
        return Plan(workers, hosts, self.timeout, self.restarts, elastic, self.remote_shell)

    def _hosts(self) -> list[Host]:
        return parse_hosts(self.hosts) if self.hosts else read_hostfile(self.hostfile)

    def _range(self) -> tuple[int, int]:
        match = re.fullmatch(r"(\d+):(\d+)", self.elastic)
        least, most = map(int, match.groups()) if match else (0, 0)
        if not 0 < least <= most:
            raise UsageError(
                f"--elastic takes the least and the greatest number of workers, as 4:8, not {self.elastic}"
            )
        return least, most

    def check(self, world: World, plan: Plan | None, *others: Any) -> None:
        """Raises UsageError for flags of these and `others` that have no effect on the workers of this plan, or else on
        those that are there, and for another number of workers than there are."""
        if plan is not None:
            way = Way(plan.workers, True, bool(plan.hosts), plan.elastic is not None)
        else:
            way = Way(world.size, hosts=len(set(world.hosts)) > 1)
            if self.workers and self.workers != world.size:
                raise UsageError(
                    f"--workers {self.workers}, but {world.size} ranks were started: leave the flag out there"
                )
        check_flags(way, self, *others)


def reduction_names() -> list[str]:
    """Return the names that --reduce takes; none without MPI, which this loads but does not start."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from fcaffe.parallel.reductions import reduction_names as names
    except (ImportError, RuntimeError):
        return []
    return names()


@dataclass(frozen=True)
class SharingFlags:
    """The flags that say how workers share a batch and sum their gradients."""

    batch: str | None = flag(
        ["global", "per-worker"],
        "What a batch_size is: the batch that the workers split, or that of each worker (global; with --gpu and "
        "several GPUs per-worker).",
        default=None,
        needs=[SEVERAL],
    )
    reduce: str = flag(
        "NAME",
        "How the gradients of the workers are added up (auto).",
        default="auto",
        needs=[SEVERAL],
    )
    compress: str = flag(
        "NAME",
        "Send gradients compressed: fp16, bf16, onebit or topk:density=X,warmup=N.",
        needs=[SEVERAL],
    )
    bucket_mb: float | None = flag(
        "MB",
        "Gradients to gather before they are sent while backward goes on (a quarter of them, at most 4).",
        "--bucket-mb",
        default=None,
        type=float,
        needs=[SEVERAL],
    )
    overlap: bool = flag(
        None, "Send gradients after backward only.", "--no-overlap", default=True, flag_value=False, needs=[SEVERAL]
    )
    bn: str | None = flag(
        ["sync", "local"],
        "BatchNorm over the batch of all workers, or of each (sync where the batch is split).",
        default=None,
        needs=[SEVERAL],
    )
    reproducible: int = flag(
        "S",
        "Compute each batch as S shards, each by itself, and add them up in one tree: the weights then have the same "
        "bits on 1 to S workers, with every --reduce and any number of threads.",
        default=0,
    )
    parallel: str = flag(
        ["auto", "data", "hybrid"],
        "Whether all workers have all weights (data) or split those of each InnerProduct for which that moves fewer "
        "bytes (hybrid); auto: hybrid between hosts of CPUs, where that saves at least half of them.",
        default="auto",
        needs=[SEVERAL],
    )

    def check(self) -> None:
        """Raises UsageError for values that no workers can use."""
        if self.bucket_mb is not None and not 0 < self.bucket_mb < math.inf:
            raise UsageError(f"--bucket-mb must be a positive number, not {self.bucket_mb:g}")

    def check_reproducible(self, rng: str, workers: int, on_gpus: bool = False) -> None:
        """Raises UsageError for flags that contradict --reproducible on this many workers."""
        shards, flag = self.reproducible, f"--reproducible {self.reproducible}"
        if not shards:
            return
        if not 1 <= shards <= MOST_SHARDS:
            raise UsageError(f"{flag}: the number of shards must be from 1 to {MOST_SHARDS}")
        if workers > shards:
            raise UsageError(f"{flag} runs on at most {shards} workers, not on {workers}: give more shards")
        others = {
            f"--rng {rng}": rng != "counter",
            f"--compress {self.compress}": self.compress,
            "--batch per-worker (with several GPUs of --gpu give --batch global)": self.batch == "per-worker",
        }
        if problem := _clash(flag, others):
            raise UsageError(problem)
        if not on_gpus and not has_one_thread():
            raise UsageError(f"{flag} computes with one thread: set {', '.join(f'{name}=1' for name in VARIABLES)}")

    def check_batch(self, batch: int, workers: int) -> None:
        """Raises UsageError if so many workers cannot split a batch."""
        if self.batch == "global" and batch < workers:
            raise UsageError(
                f"{workers} workers cannot split a batch of {batch}: use at most {batch}, or --batch per-worker to "
                "give each worker a batch of its own"
            )

    def with_batch_of(self, gpus: TrainingGpus, workers: int) -> SharingFlags:
        """These flags with `batch` set: to the flag if given, else per worker for --gpu with several GPUs, as in BVLC
        Caffe, and global for all others."""
        return replace(self, batch=self.batch or ("per-worker" if gpus.listed and workers > 1 else "global"))

    def with_parallel(self, rng: str) -> SharingFlags:
        """These flags with `parallel` set to data where weights cannot be split.

        Raises UsageError if --parallel hybrid is given."""
        others = {
            "--reproducible": self.reproducible,
            "--compress topk, which applies momentum": self.compress.startswith("topk"),
            "--batch per-worker": self.batch == "per-worker",
            "--rng caffe": rng == "caffe",
        }
        problem = _clash("--parallel hybrid", others)
        if problem and self.parallel == "hybrid":
            raise UsageError(problem)
        return replace(self, parallel="data") if problem else self

    def _split_below(self, world: World, xp: Any) -> float:
        """See Context. Each of several workers of a host gets the activations of the other hosts."""
        if self.parallel == "hybrid":
            if xp is not np:
                raise UsageError("--parallel hybrid is for engines on CPUs: leave it out on GPUs")
            return 1.0
        counts = [world.hosts.count(host) for host in set(world.hosts)]
        return 0.5 / max(counts) if self.parallel == "auto" and xp is np and len(counts) > 1 else 0.0

    def for_solver(self, world: World, timeline: Timeline, xp: Any) -> dict[str, Any]:
        """The arguments of `Solver` about the other workers.

        `xp` is the module of the engine's arrays. If it is CuPy, the engine's device and stream must be current.
        """
        self.check()
        if world.size == 1:
            self._check_names()
            return {"shards": self.reproducible}
        from fcaffe.parallel.exchange import ReducingExchange  # these import MPI
        from fcaffe.parallel.workers import MpiWorkers

        reduction = self._reduction(world, xp)
        bucket = None if self.bucket_mb is None else int(self.bucket_mb * 2**20)
        per_worker = self.batch == "per-worker"
        # On one host sums are work for the cores that compute, so none is hidden by doing it at the same time.
        between_hosts = len(set(world.hosts)) > 1 or reduction.on_device
        worthwhile = self.overlap and (between_hosts or bucket is not None)
        overlap = worthwhile and (world.threads or not reduction.host_waits)
        if worthwhile and not overlap:
            log.warning(
                "This MPI cannot be called by several threads at once (MPI_THREAD_MULTIPLE): gradients are summed "
                "after backward, as with --no-overlap"
            )
        return {
            "workers": MpiWorkers(world.comm, per_worker, world.watchdog, timeline, reduction),
            "exchange": ReducingExchange(reduction, bucket, overlap, world.watchdog, timeline),
            "shards": self.reproducible,
            "split_below": self._split_below(world, xp),
            "sync_batch_norm": (self.bn or ("local" if per_worker else "sync")) == "sync",
        }

    def _check_names(self) -> None:
        """Raises UsageError for an unknown reduction or compression, also where one worker uses none."""
        if (self.reduce != "auto" or self.compress) and reduction_names():
            from fcaffe.parallel.compression import parse_compression
            from fcaffe.parallel.reductions.reduction import parse_name

            parse_name(self.reduce)
            if self.compress:
                parse_compression(self.compress)

    def _reduction(self, world: World, xp: Any) -> Any:
        from fcaffe.parallel.compression import make_compression
        from fcaffe.parallel.reductions import create_reduction

        if self.compress:
            if self.reduce != "auto":
                raise UsageError(
                    f"--compress {self.compress} has messages of its own: leave out --reduce {self.reduce}"
                )
            return make_compression(self.compress, world.comm, xp)
        in_tree_order = "auto" if xp is np else "staged:auto"  # NCCL's order is its own
        reduction = create_reduction(
            in_tree_order if self.reproducible and self.reduce == "auto" else self.reduce, world.comm, xp
        )
        if self.reproducible:
            reduction.keep_to_tree(*nodes_of_workers(self.reproducible, world.size))
        return reduction


def _clash(flag: str, others: dict[str, Any]) -> str:
    """The message about the first of the other flags that is given; empty if none is."""
    given = [other for other, value in others.items() if value]
    return f"{flag} does not go with {given[0]}: leave one of them out" if given else ""


def order_of_command(**more: Any) -> dict[str, Any]:
    """The launcher's order to a rank: this command, with the values that its flags have; `more` are for the command."""
    context = click.get_current_context()
    return {
        "command": context.command.name,
        "params": dict(context.params),
        "imports": context.meta.get(IMPORTS, ()),
        "traceback": "--traceback" in context.find_root().obj,
        **more,
    }
