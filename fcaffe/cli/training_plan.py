"""`fcaffe train --plan`: what an iteration is expected to take, before the first; what it has taken, after the last."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from fcaffe import log
from fcaffe.cli.workers import SharingFlags
from fcaffe.errors import UsageError
from fcaffe.parallel.world import World
from fcaffe.plan.machine import Machine
from fcaffe.plan.machine_file import MACHINE, read_machine
from fcaffe.plan.plan import Plan, Row
from fcaffe.plan.question import Question
from fcaffe.plan.reductions import REDUCTIONS
from fcaffe.plan.work import work_of_solver_param
from fcaffe.solvers import Observer, Solver
from fcaffe.timeline import BACKWARD, DATA, FORWARD, OTHER, REDUCE, UPDATE, WAIT, Timeline

BUCKETS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # MB, that are compared
BETWEEN_HOSTS = ("ring", "halving", "doubling", "tree", "server")  # of one rank each
GAIN = 0.03  # of the iteration, that another choice than fcaffe's own must be predicted to spare
TERMS = {
    "compute": (FORWARD, BACKWARD, OTHER),
    "exposed sums": (REDUCE, WAIT),
    "data": (DATA,),
    "update": (UPDATE,),
}  # which kinds of time, of the timeline, are a term of the plan


class AfterFirst(Observer):
    """The time of a worker from its second iteration on: in the first one kernels are compiled, primitives made, and
    memory is touched for the first time."""

    looks = False

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.begun = 0  # iterations
        self._before = dict(timeline.seconds)

    def iteration_begins(self) -> None:
        self.begun += 1
        if self.begun == 2:
            before, passed = dict(self.timeline.seconds), time.perf_counter() - self.timeline.origin
            self._before = {**before, OTHER: passed - sum(before.values())}  # whose span is open to the end

    def seconds(self) -> dict[str, float]:
        """By kinds, once the training is through; of one iteration none."""
        after = self.timeline.seconds
        return {kind: after[kind] - self._before[kind] if self.begun > 1 else 0.0 for kind in after}


@dataclass(frozen=True)
class TrainingPlan:
    """At worker 0 the machine's file, and what is expected of an iteration."""

    file: str
    row: Row

    def tell(self) -> None:
        """Before the first iteration."""
        row = self.row
        seconds = ", ".join(f"{name} {1e3 * value:.2f} ms" for name, value in _expected(row).items())
        reduce = f" and --reduce {row.reduce}" if row.workers > 1 else ""
        log.info(
            f"Plan by {self.file}, for {row.workers} worker{'s' * (row.workers > 1)}{reduce}: an iteration of "
            f"{1e3 * row.seconds:.2f} ms: {seconds}"
        )

    def compare(self, everyone: Sequence[dict[str, float]], iterations: int) -> None:
        """After the last one, by the seconds of each worker's timeline since the first of these `iterations`; tests and
        snapshots are left out."""
        for line in compared(_expected(self.row), everyone, iterations):
            log.info(line)


@contextlib.contextmanager
def followed(plan: TrainingPlan | None, solver: Solver, timeline: Timeline) -> Iterator[None]:
    """The body of the `with` trains; worker 0, which alone has the plan, tells before and after. Collective."""
    after_first = AfterFirst(timeline)
    solver.observers.append(after_first)
    if plan:
        plan.tell()
    yield
    everyone = solver.workers.gather(after_first.seconds()) or []
    if plan:
        plan.compare(everyone, after_first.begun - 1)


def compared(expected: dict[str, float], everyone: Sequence[dict[str, float]], iterations: int) -> Iterator[str]:
    """The lines of a table: seconds of an iteration that were expected, and the mean of the workers."""
    if iterations < 1:
        return
    came = {
        name: sum(own[kind] for own in everyone for kind in kinds) / len(everyone) / iterations
        for name, kinds in TERMS.items()
    }
    yield f"Milliseconds of each of {iterations} iterations after the first:"
    yield f"{'':<16}{'planned':>10}{'came':>10}{'ratio':>8}"
    pairs = {name: (expected[name], came[name]) for name in TERMS}
    pairs["iteration"] = sum(expected.values()), sum(came.values())
    for name, (planned, real) in pairs.items():
        ratio = f"{planned / real:>8.2f}" if planned and real else ""
        yield f"{name:<16}{1e3 * planned:>10.2f}{1e3 * real:>10.2f}{ratio}"


def _expected(row: Row) -> dict[str, float]:
    return dict(zip(TERMS, (row.compute, row.exposed, row.data, row.update), strict=True))


def machine_of(flag: str) -> Machine:
    """Of --plan: its file, or that which `fcaffe plan --calibrate` writes. Raises UsageError."""
    file = flag or MACHINE
    if not os.path.exists(file):
        raise UsageError(
            f"--plan: there is no {file}; measure this machine and the net with: fcaffe plan --calibrate --solver FILE "
            f"--workers N{f' --out {file}' if flag else ''}"
        )
    return read_machine(file)


def plan_training(
    flag: str, param: Any, solver_file: str, world: World, sharing: SharingFlags, on_gpu: bool
) -> tuple[TrainingPlan | None, SharingFlags]:
    """What worker 0 expects (None elsewhere), and how sums are to be done. Collective. Raises UsageError.

    Between hosts whose links were measured, a file that `flag` names also picks the reduction and the size of buckets,
    where the user has left them open, and how much goes in 16 bits, where that is to be found out: worker 0 does, for
    all, and by that file alone.
    """
    if world.rank:
        return None, world.comm.bcast(None)
    question, bits = _question(flag, param, solver_file, world, sharing), sharing.first
    row = Plan(question).row(world.size, _known(sharing.reduce))
    several_hosts = len(set(world.hosts)) > 1 and "measured" in question.machine.between.name
    if several_hosts and not (on_gpu or sharing.reproducible):
        if flag and (bits is None or not sharing.compress):
            row, sharing = _picked(question, row, sharing)
        if bits is None:
            row, sharing = _picked_bits(question, row, sharing)
    elif bits is None and len(set(world.hosts)) == 1:
        log.info(f"--compress {sharing.compress}: no sum of one host goes over a link, so none needs 16 bits")
        sharing = replace(sharing, compress="")
    if world.size > 1:
        world.comm.bcast(sharing)
    return TrainingPlan(flag or MACHINE, row), sharing


def _question(flag: str, param: Any, solver_file: str, world: World, sharing: SharingFlags) -> Question:
    machine = machine_of(flag)
    machine = replace(machine, devices_per_node=max(Counter(world.hosts).values()))
    work = work_of_solver_param(param, solver_file)
    if not (machine.measured_for(work.name, world.size) or machine.speed_of(work.name)):
        raise UsageError(
            f"--plan {flag or MACHINE}: the net {work.name} was not measured there; do so with: fcaffe plan "
            f"--calibrate --solver {solver_file} --workers {world.size} --out {flag or MACHINE}"
        )
    bucket = None if sharing.bucket_mb is None else sharing.bucket_mb * (1 << 20)
    first, per_worker = (sharing.first or 0.0) * (1 << 20), sharing.batch == "per-worker"
    return Question(work, machine, work.batch, per_worker, overlap=sharing.overlap, bucket=bucket, first=first)


def _known(reduce: str) -> str:
    return reduce if reduce in REDUCTIONS else "auto"


def _picked(question: Question, row: Row, sharing: SharingFlags) -> tuple[Row, SharingFlags]:
    """The fastest reduction and bucket of those that the user has left open, if that is worth it; told."""
    names = ("hierarchical",) if question.machine.devices_per_node > 1 else BETWEEN_HOSTS
    names = names if sharing.reduce == "auto" else (row.reduce,)
    sizes = (None, *BUCKETS) if sharing.overlap and sharing.bucket_mb is None else (sharing.bucket_mb,)
    best, choice = row, sharing
    for size in sizes:
        plan = Plan(replace(question, bucket=None if size is None else size * (1 << 20)))
        for name in names:
            found = plan.row(row.workers, name)
            if found.seconds < best.seconds:
                best, choice = found, replace(sharing, reduce=name, bucket_mb=size)
    if best.seconds > (1 - GAIN) * row.seconds:
        return row, sharing
    bucket = f" --bucket-mb {choice.bucket_mb:g}" if choice.bucket_mb is not None else ""
    log.info(
        f"--plan picks --reduce {choice.reduce}{bucket}: {1e3 * best.seconds:.2f} ms an iteration expected, in place "
        f"of {1e3 * row.seconds:.2f}; these flags alone give the same bits"
    )
    return best, choice


def _picked_bits(question: Question, row: Row, sharing: SharingFlags) -> tuple[Row, SharingFlags]:
    """As many buckets from the front on in 16 bits as it takes to come close to the fastest iteration that any number
    of them gives; told."""
    bucket = None if sharing.bucket_mb is None else sharing.bucket_mb * (1 << 20)
    question = replace(question, bucket=bucket)
    ends = list(accumulate(part.bytes for part in reversed(question.cut(row.workers))))
    tried = [Plan(replace(question, first=end)).row(row.workers, _known(sharing.reduce)) for end in (0, *ends)]
    enough = min(each.seconds for each in tried) / (1 - GAIN)
    number = next(number for number, each in enumerate(tried) if each.seconds <= enough)
    asked, scheme = sharing.compress, sharing.compress.partition(":")[0]
    if number == 0:
        log.info(f"--plan picks no --compress: {asked} would spare less than {GAIN:.0%}, as sums are expected to hide")
        return row, replace(sharing, compress="")
    end, following = (at / (1 << 20) for at in (*ends, math.inf)[number - 1 : number + 1])
    compress = f"{scheme}:first={str(roundest(end, following)).removesuffix('.0')}"
    others = f" --reduce {sharing.reduce}" if sharing.reduce != "auto" else ""
    others += f" --bucket-mb {sharing.bucket_mb:g}" if sharing.bucket_mb is not None else ""
    log.info(
        f"--plan picks --compress {compress}{others}: {scheme} for {number} of {len(ends)} buckets, {end:.2f} MB; "
        f"{1e3 * tried[number].seconds:.2f} ms an iteration expected, in place of {1e3 * tried[0].seconds:.2f}; these "
        "flags alone give the same bits"
    )
    return tried[number], replace(sharing, compress=compress)


def roundest(least: float, below: float) -> float:
    """The smallest number in [least, below) of those with the fewest decimals."""
    for digits in range(16):
        number = math.ceil(least * 10**digits) / 10**digits
        if least <= number < below:
            return number
    return least
