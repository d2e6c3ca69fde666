"""Which run has written a state: the newest state under a prefix, a run's own states, and those of others.

Each state has the generations of its run: a random number for the start of the training, and one more, with the
iteration, for each resumption. So the states under a prefix form a tree:

    A:10 -- A:20 -- A:30
                `-- B:25 -- B:35         a training with generation B resumed from A:20

The run of B:35 has the states on the path to it. A:30 is of another run.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from fcaffe import log
from fcaffe.errors import OtherRunError, SnapshotError
from fcaffe.output_files import remove_leftovers
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.snapshot.files import State, check_whole, paths, read_state, temporary_prefix


class Generation(NamedTuple):
    """A start or a resumption; `iteration` is that of the state it resumed from, -1 for a start."""

    id: int
    iteration: int


Generations = tuple[Generation, ...]


class Written(NamedTuple):
    """What a state says about itself. States of Caffe and early fcaffe have no generations, and their file's time."""

    path: str
    iteration: int
    time: int
    generations: Generations

    @property
    def run(self) -> int:
        """The number of the training's start; 0 if the state has none."""
        return self.generations[0].id if self.generations else 0

    def leads_to(self, generations: Generations) -> bool:
        """Whether this state is on the path to those of the last of these generations, or is one of them."""
        own = len(self.generations)
        if self.generations != generations[:own]:
            return False
        return own == len(generations) or self.iteration <= generations[own].iteration


def written(path: str, state: State) -> Written:
    origin = state.resume.origin if state.resume is not None else pb.Origin()
    generations = tuple(Generation(one.id, one.iteration) for one in origin.generation)
    when = origin.time if generations else os.stat(path).st_mtime_ns
    return Written(path, state.iteration, when, generations)


def states(prefix: str, tell: bool = False) -> list[Written]:
    """The states under a prefix and its temporary ones: the last run first, and of a run the highest iteration first.

    The last run is that of the latest time in a state. States without generations count as one run before all others.
    `tell` logs the files that cannot be read.
    """
    left, ordered = [], list[Written]()
    for path in _files(prefix, "solverstate"):
        try:
            stat = os.stat(path)
            left.append(_written(path, stat.st_mtime_ns, stat.st_size))
        except OSError:
            continue  # removed meanwhile, or a broken link
        except SnapshotError as problem:
            if tell:
                log.warning(f"Passing over {path}: {problem}")
    while left:
        last = max(left, key=lambda one: (bool(one.generations), one.time))
        run = [one for one in left if one.leads_to(last.generations)]
        ordered += sorted(run, key=lambda one: (one.iteration, one.time), reverse=True)
        left = [one for one in left if one not in run]
    return ordered


@functools.lru_cache(maxsize=10_000)
def _written(path: str, changed: int, size: int) -> Written:
    return written(path, read_state(path))


def models(prefix: str) -> list[str]:
    """The paths of the models under a prefix, the newest file first, for a run without states."""
    return sorted(_files(prefix, "caffemodel"), key=os.path.getmtime, reverse=True)


def newest(prefix: str, check: Callable[[str], object] = check_whole, of: int = 0, tell: bool = True) -> str | None:
    """The path of the newest whole state under a prefix, in the order of `states`; None if there is none.

    `check` raises SnapshotError for a state that is not whole, which `tell` logs; an OtherRunError ends the search.
    `of` is 0, or the number of a generation that the state's run must have.
    """
    for state in states(prefix, tell):
        if of and of not in [one.id for one in state.generations]:
            continue
        try:
            check(state.path)
            return state.path
        except OtherRunError:
            raise
        except SnapshotError as problem:
            if tell:
                log.warning(f"Passing over {state.path}: {problem}")
    return None


class Identity:
    """The generations of a run that trains now, and its states under a prefix. Worker 0's counts.

    A job that starts its ranks again gives each start the same number, `job`, so that it knows its states.
    """

    def __init__(self, prefix: str, job: int = 0) -> None:
        self.prefix, self.job = prefix, job
        self.generations: Generations = (Generation(job or new_number(), -1),)
        self._time = 0  # of the last state that it has written or resumed from
        self._has_written = False
        self._replaceable: set[int] | None = None  # the runs whose files this one may replace; None: all
        self._lone_models: set[str] = set()  # temporary models that had no state a while ago

    def resume(self, state: Written) -> None:
        """The run goes on from this state."""
        known = not self.job or self.job in [one.id for one in state.generations]
        self.generations = (*state.generations, Generation(new_number() if known else self.job, state.iteration))
        self._time, self._has_written = state.time, False

    def origin(self) -> Any:
        """The Origin message for a state that is written now."""
        if not self._has_written:
            self._has_written, self._time = True, max(self._time, *(state.time for state in states(self.prefix)), 0)
        self._time = max(time.time_ns(), self._time + 1)
        return pb.Origin(
            generation=[pb.Generation(id=one.id, iteration=one.iteration) for one in self.generations], time=self._time
        )

    def own(self) -> list[Written]:
        """The states of this run, the highest iteration first."""
        return [state for state in states(self.prefix) if state.leads_to(self.generations)]

    def begin(self, solver: Any, command: str) -> None:
        """Prepare a training with these solver parameters: from now on this run replaces no file of another one.

        Three kinds of files are replaced as in Caffe: those of the training that this run resumes, those of a run that
        has come to max_iter, and those of a run without a whole state. `command` starts a training with these
        parameters.

        Before a training from the start it warns of other runs' states, and raises OtherRunError if one of them would
        be replaced.
        """
        found = states(self.prefix)
        resumed = {state.run for state in found if state.leads_to(self.generations)} | {self.generations[0].id}
        others = [state for state in found if state.run not in resumed]
        latest: dict[int, Written] = {}  # the whole state from which each other run would go on
        for state in others:
            if state.run not in latest and _is_whole(state.path):
                latest[state.run] = state
        complete = {state.run for state in others if state.iteration >= solver.max_iter or state.run not in latest}
        self._replaceable = resumed | complete
        self._lone_models = self._find_lone_models()
        if not latest or len(self.generations) > 1:
            return
        for state in (state for state in others if state.run not in complete):
            names = paths(self.prefix, state.iteration, solver.snapshot_format == pb.SolverParameter.HDF5)
            is_due = solver.snapshot and state.iteration % solver.snapshot == 0
            if is_due and os.path.realpath(state.path) == os.path.realpath(names[1]):
                raise OtherRunError(
                    f"{' and '.join(names)} are of another run, which came to iteration {latest[state.run].iteration}, "
                    f"and this training would replace them at iteration {state.iteration}: go on from the other run "
                    f"with {command} --snapshot {latest[state.run].path}, or remove {self.prefix}_iter_*, or set "
                    "another snapshot_prefix"
                )
        last, more = next(iter(latest.values())), len(others) - 1
        which = f"{last.path} and {more} more under this prefix are" if more else f"{last.path} is"
        log.warning(
            f"{which} of another run, which came to iteration {last.iteration}. This training begins anew; {command} "
            f"--snapshot {last.path} goes on from the other run"
        )

    def prefix_for(self, prefix: str, iteration: int, hdf5: bool) -> str:
        """The prefix for a snapshot: this one, or a longer one if another run has written the file of that name.

        Signals and --snapshot-every ask for snapshots in any iteration, so `begin` does not know all names.
        """
        path = paths(prefix, iteration, hdf5)[1]
        if self._replaceable is None or not os.path.exists(path):
            return prefix
        with suppress(SnapshotError, OSError):  # a damaged file is replaced
            if written(path, read_state(path)).run not in self._replaceable:
                longer = f"{prefix}_{self.generations[0].id:014x}"
                log.warning(f"{path} is of another run, so this snapshot is {longer}_iter_{iteration}")
                return longer
        return prefix

    def remove_temporary(self, but: int = 0) -> None:
        """Remove the temporary snapshots of this run, but for the latest ones, and what killed writers have left."""
        remove_leftovers(f"{temporary_prefix(self.prefix)}_", tell=False)
        unused = [state.path for state in self.own() if _is_temporary(state.path, self.prefix)][but:]
        before, self._lone_models = self._lone_models, self._find_lone_models()
        for path in (*unused, *map(_counterpart, unused), *(before & self._lone_models)):
            with suppress(OSError):  # another worker was faster
                os.unlink(path)

    def _find_lone_models(self) -> set[str]:
        """The temporary models without a state: their writers are about to write it, or were killed before that."""
        models = [path for path in _files(self.prefix, "caffemodel") if _is_temporary(path, self.prefix)]
        return {path for path in models if not os.path.exists(_counterpart(path))}


def new_number() -> int:
    """A random number for a start of a training or of a job."""
    return int.from_bytes(os.urandom(7), "little") + 1


def _is_whole(path: str) -> bool:
    try:
        check_whole(path)
    except SnapshotError:
        return False
    return True


def _files(prefix: str, kind: str) -> list[str]:
    """The files of snapshots and temporary ones under a prefix, of this kind."""
    pattern = re.compile(
        rf"{re.escape(os.path.basename(prefix))}(_temporary)?(_[0-9a-f]{{14}})?_iter_\d+\.{kind}(\.h5)?"
    )
    return [path for path in glob.glob(f"{glob.escape(prefix)}_*") if pattern.fullmatch(os.path.basename(path))]


def _is_temporary(path: str, prefix: str) -> bool:
    return os.path.basename(path).startswith(f"{os.path.basename(temporary_prefix(prefix))}_")


def _counterpart(path: str) -> str:
    """The path of a state's model, or of a model's state."""
    stem, separator, ending = path.rpartition("_iter_")
    kinds = [".caffemodel", ".solverstate"]
    kind, other = kinds if kinds[0] in ending else reversed(kinds)
    return stem + separator + ending.replace(kind, other)
