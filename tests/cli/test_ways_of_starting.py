"""Each flag is honoured or refused, however fcaffe is started. The flags are those of the click commands themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from fcaffe.cli import _load, gflags
from fcaffe.cli.commands import COMMANDS
from fcaffe.cli.workers import LAUNCHING
from fcaffe.parallel.launch import Plan
from fcaffe.parallel.world import World
from fcaffe.threads import VARIABLES
from tests.cli.conftest import Result
from tests.parallel.conftest import MPIEXEC, ROOT, needs_mpi

Run = Callable[..., Result]
TRAIN = import_module("fcaffe.cli.train")


SAMPLES = {  # a use of each flag of `train`
    "solver": "--solver missing.prototxt",
    "model": "--model missing.prototxt",
    "weights": "--weights missing.caffemodel",
    "snapshot": "--snapshot missing.solverstate",
    "iterations": "--iterations 3",
    "gpu": "--gpu 0",
    "gpu_count": "--gpus 2",
    "phase": "--phase TEST",
    "level": "--level 3",
    "stage": "--stage few",
    "sigint_effect": "--sigint_effect nonsense",
    "sighup_effect": "--sighup_effect nonsense",
    "on_nan": "--on-nan continue",
    "rng": "--rng caffe",
    "scale_lr": "--scale-lr linear",
    "grow_batch": "--grow-batch 8",
    "recompute": "--recompute",
    "report": "--report page.html",
    "tensorboard": "--tensorboard events",
    "trace": "--trace trace.json",
    "restarts": "--restarts 2",
    "workers": "--workers 2",
    "hosts": "--hosts a:1,b:1",
    "hostfile": "--hostfile hosts",
    "mpi_args": "--mpi-args=-v",
    "timeout": "--timeout 17",
    "batch": "--batch per-worker",
    "reduce": "--reduce ring",
    "compress": "--compress fp16",
    "bucket_mb": "--bucket-mb 2",
    "overlap": "--no-overlap",
    "bn": "--bn local",
    "reproducible": "--reproducible 2",
    "engine": "--engine numpy",
    "math": "--math bf16",
    "graphs": "--no-graph",
    "loss_scale": "--loss-scale 64",
    "nondeterministic": "--fast-nondeterministic",
    "log": "--log log",
    "minloglevel": "--minloglevel 1",
    "log_dir": "--log_dir .",
    "logtostderr": "--logtostderr",
    "imports": "--import mine",
    "traceback": "--traceback",
    "version": "--version",
}
NONSENSE = ["--batch x", "--reduce rong", "--compress x", "--compress topk:x=1", "--bucket-mb -1", "--bn x"]


def flags_of(name: str) -> list[click.Option]:
    """All flags of a command but glog's that are accepted without effect."""
    return [param for param in _load(name).params if isinstance(param, click.Option) and not param.hidden]


FLAGS = [flag.name for flag in flags_of("train")]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Plan, list[str]]]:
    """What a launcher is asked to start; it starts nothing, and returns 7."""
    jobs: list[tuple[Plan, list[str]]] = []

    def launch(plan: Plan, words: list[str], *_: Any) -> int:
        jobs.append((plan, words))
        return 7

    monkeypatch.setattr(TRAIN, "launch", launch)
    return jobs


@pytest.fixture
def inputs(folder: Path) -> Path:
    (folder / "hosts").write_text("a:1\nb:1\n")
    (folder / "mine.py").write_text("print('imported')")
    return folder


@pytest.mark.parametrize("words", NONSENSE)
def test_nonsense_for_several_workers_is_refused_with_one(words: str, run: Run, inputs: Path) -> None:
    assert run(f"train --solver solver.prototxt {words}").code in (1, 134)


def values(command: str, words: list[str]) -> dict[str, Any]:
    """The values that a command takes from these words, and from some word for each argument that it needs."""
    loaded = _load(command)
    needed = [param for param in loaded.params if isinstance(param, click.Argument) and param.required]
    given = [next(iter(getattr(param.type, "choices", ["word"]))) for param in needed]
    return loaded.make_context(command, [*words, *given], resilient_parsing=False).params


@pytest.mark.parametrize("way", ["--workers=2", "--hosts=a:1,b:1", "--hostfile=hosts"])
@pytest.mark.parametrize("flag", FLAGS)
def test_ranks_are_given_each_flag(way: str, flag: str, run: Run, inputs: Path, started: Any) -> None:
    """Of a flag, the launcher reads the value, or the ranks get it, or the start is refused."""
    words = ["--solver=solver.prototxt", way, *SAMPLES[flag].split()]
    result = run("train", *words)
    if result.code in (0, 1, 134):
        named = re.sub("[ =].*", "", SAMPLES[flag])
        assert named in result.err or flag in ("solver", "version"), result
        return
    ((plan, given),) = started
    assert result.code == 7 and given[0] == "train"
    wanted, got = (values("train", each) for each in (words, given[1:]))
    launching = {"hosts", "hostfile", "mpi_args", "restarts"}
    assert {name for name in wanted if wanted[name] != got[name]} <= launching
    assert (plan.restarts, plan.mpi_args) == (wanted["restarts"], wanted["mpi_args"])
    assert plan.workers == 2 and plan.timeout == wanted["timeout"]
    assert bool(plan.hosts) is bool(wanted["hosts"] or wanted["hostfile"])


def test_the_launchers_own_flags() -> None:
    names = {name: flag.name for flag in flags_of("train") for name in flag.opts}
    assert {names[name] for name in LAUNCHING} == {"hosts", "hostfile", "mpi_args", "restarts"}


class ReachedError(Exception):
    """A rank reads the solver: it has accepted its flags."""


@pytest.mark.parametrize("flag", FLAGS)
def test_under_mpiexec(flag: str, run: Run, inputs: Path, monkeypatch: pytest.MonkeyPatch, started: Any) -> None:
    """Ranks that another launcher has started accept each flag, but for those of fcaffe's launcher."""

    def read_solver(_: Any) -> Any:
        raise ReachedError

    monkeypatch.setattr(TRAIN, "join", lambda _: World(size=2))
    monkeypatch.setattr(TRAIN, "check_same_flags", lambda _: None)
    monkeypatch.setattr(TRAIN, "_solver_param", read_solver)
    monkeypatch.setattr(World, "__exit__", lambda *_: None)
    result = run("train", "--solver=solver.prototxt", *SAMPLES[flag].split())
    own = flag in ("hosts", "hostfile", "mpi_args", "restarts")
    early = flag in ("sigint_effect", "sighup_effect", "version", "minloglevel")
    if not early:
        assert ("another launcher has started these 2 ranks" in result.err) is own, result
        assert ("ReachedError" in result.err) is not own


@pytest.mark.parametrize("words", ["--hosts a:1,b:1", "--hostfile hosts", "--mpi-args=-v"])
def test_bench_under_mpiexec(words: str, run: Run, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("fcaffe.cli.bench"), "join", lambda _: World(size=2))
    monkeypatch.setattr(World, "__exit__", lambda *_: None)
    assert "another launcher has started these 2 ranks" in run(f"bench reduce {words}").fatal


@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_file_says_what_the_command_line_says(command: str, tmp_path: Path) -> None:
    """Every flag of every command, with a value made from its type, has the same value by either way."""
    lines = []
    for flag in flags_of(command):
        if flag.name in ("imports", "version", "traceback", "module"):
            continue
        if flag.is_flag:
            lines.append(flag.opts[-1])
        elif isinstance(flag.type, click.Choice):
            lines.append(f"{flag.opts[-1]}={next(each for each in flag.type.choices if each != flag.default)}")
        else:
            number = isinstance(flag.type, click.types.IntParamType | click.types.FloatParamType)
            lines.append(f"{flag.opts[-1]}={3 if number else 'a b'}")
    (tmp_path / "flags").write_text("\n".join(lines))
    words = list(gflags.inline([f"--flagfile={tmp_path / 'flags'}"]))
    by_file, by_words = values(command, words), values(command, lines)
    assert by_file == by_words
    defaults = values(command, [])
    given = {flag.name for flag in flags_of(command)} & by_file.keys() - {"module"}
    assert not {name for name in given if by_file[name] == defaults[name]}


@needs_mpi
def test_real_starts(inputs: Path) -> None:
    """The fake launcher's words are those of real ranks: a flag in a flag file reaches them, and one is refused."""
    (inputs / "flags").write_text("--solver=solver.prototxt\n--reproducible=2\n--reduce=ring\n")
    command = [sys.executable, "-m", "fcaffe", "train", "--flagfile=flags"]

    def log_of(*words: object) -> tuple[int, str]:
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        environment["PYTHONPATH"] = str(ROOT)
        done = subprocess.run(
            [*map(str, words)], cwd=inputs, env=environment, capture_output=True, text=True, timeout=300
        )
        return done.returncode, done.stderr

    for words in (command, [*command, "--workers", "2"], [MPIEXEC, "-n", "2", *command]):
        code, err = log_of(*words)
        assert code == 0 and "Reproducible: each batch is computed as 2 shards" in err, err
    code, err = log_of(MPIEXEC, "-n", "2", *command, "--restarts", "1")
    assert code != 0 and "--restarts is for several workers that fcaffe starts" in err
