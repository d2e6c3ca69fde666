"""Each flag is honoured or refused, however fcaffe is started. The flags are those of the click commands themselves."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from fcaffe.cli import _load, gflags
from fcaffe.cli.commands import COMMANDS
from fcaffe.jobs.hosts import Plan
from fcaffe.jobs.world import World
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_solver
from fcaffe.threads import VARIABLES
from tests.cli.conftest import Run
from tests.parallel.conftest import MPIEXEC, ROOT, needs_mpi

TRAIN = import_module("fcaffe.cli.train")


class Sample(NamedTuple):
    """A use of a flag that changes what a command does, beside these other words and with this in the solver."""

    words: str
    beside: str = ""
    solver: str = ""


SAMPLES = {
    "solver": Sample("--solver missing.prototxt"),
    "model": Sample("--model missing.prototxt"),
    "weights": Sample("--weights net.prototxt"),
    "snapshot": Sample("--snapshot net.prototxt"),
    "iterations": Sample("--iterations 3"),
    "gpu": Sample("--gpu 0"),
    "gpus": Sample("--gpus 2"),
    "ap_version": Sample("--ap-version 11point"),
    "per_class": Sample("--per-class"),
    "phase": Sample("--phase TEST"),
    "level": Sample("--level 3"),
    "stage": Sample("--stage few"),
    "sigint_effect": Sample("--sigint_effect nonsense"),
    "sighup_effect": Sample("--sighup_effect nonsense"),
    "on_nan": Sample("--on-nan continue", solver="base_lr: 3e38"),
    "rng": Sample("--rng caffe"),
    "scale_lr": Sample("--scale-lr linear"),
    "keep_best": Sample("--keep-best accuracy"),
    "patience": Sample("--patience 1"),
    "recompute": Sample("--recompute"),
    "report": Sample("--report page.html"),
    "tensorboard": Sample("--tensorboard events"),
    "restarts": Sample("--restarts 2"),
    "workers": Sample("--workers 2"),
    "hosts": Sample("--hosts a:1,b:1"),
    "hostfile": Sample("--hostfile hosts"),
    "remote_shell": Sample("--remote-shell rsh"),
    "timeout": Sample("--timeout 17"),
    "workers_per_host": Sample("--workers-per-host 2"),
    "elastic": Sample("--elastic 1:2"),
    "rejoin": Sample("--rejoin 5"),
    "snapshot_every": Sample("--snapshot-every 1e-6"),
    "batch": Sample("--batch per-worker"),
    "reduce": Sample("--reduce ring"),
    "compress": Sample("--compress fp16"),
    "bucket_mb": Sample("--bucket-mb 2"),
    "overlap": Sample("--no-overlap"),
    "bn": Sample("--bn local"),
    "parallel": Sample("--parallel hybrid"),
    "reproducible": Sample("--reproducible 2"),
    "engine": Sample("--engine numpy"),
    "math": Sample("--math bf16"),
    "graphs": Sample("--no-graph"),
    "loss_scale": Sample("--loss-scale 64"),
    "nondeterministic": Sample("--fast-nondeterministic"),
    "log": Sample("--log log"),
    "minloglevel": Sample("--minloglevel 1"),
    "log_dir": Sample("--log_dir ."),
    "logtostderr": Sample("--logtostderr", beside="--log_dir ."),
    "imports": Sample("--import mine"),
    "traceback": Sample("--traceback", beside="--gpu 0"),
    "version": Sample("--version"),
    "profiled": Sample("--profile"),  # of `time`
}
# How several workers share the work: with one a line of the log names these flags. Nonsense is refused all the same.
OF_SEVERAL = {"batch", "reduce", "compress", "bucket_mb", "overlap", "bn", "parallel"}
OF_THE_LAUNCHER = {"hosts", "hostfile", "restarts", "workers_per_host", "elastic", "rejoin"}
OF_THE_LAUNCHER |= {"remote_shell"}
NONSENSE = ["--batch x", "--reduce rong", "--compress x", "--compress topk:x=1", "--bucket-mb -1", "--bn x"]
NONSENSE += ["--parallel x"]

BASELINES = {
    "train": "train --solver solver.prototxt",
    "test": "test --model net.prototxt --weights start.caffemodel --iterations 2",
    "time": "time --model net.prototxt --iterations 1",
    "device_query": "device_query",
}


def flags_of(name: str) -> list[click.Option]:
    """All flags of a command but glog's that are accepted without effect."""
    return [param for param in _load(name).params if isinstance(param, click.Option) and not param.hidden]


PAIRS = [(command, flag.name) for command in BASELINES for flag in flags_of(command)]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Plan, dict[str, Any]]]:
    """The plan and the order to the ranks of a launcher that starts nothing, and returns 7."""
    jobs: list[tuple[Plan, dict[str, Any]]] = []

    def launch(plan: Plan, order: Callable[[str | None], dict[str, Any]], *_: Any) -> int:
        jobs.append((plan, json.loads(json.dumps(order(None)))))
        return 7

    monkeypatch.setattr("fcaffe.jobs.launch.launch", launch)
    return jobs


@pytest.fixture
def inputs(folder: Path) -> Path:
    (folder / "hosts").write_text("a:1\nb:1\n")
    (folder / "mine.py").write_text("print('imported')")
    net = (folder / "net.prototxt").read_text()
    for rule in ("min_level: 2", 'stage: "few"'):
        layer = 'layer {{ name: "more {0}" type: "Silence" bottom: "ip" include {{ {1} }} }}\n'
        net += layer.format(rule.replace('"', ""), rule)
    bottom = "data"
    for number in range(4):  # enough layers for --recompute to save memory
        convolution = "convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: 'xavier' } }"
        net += f'layer {{ name: "c{number}" type: "Convolution" bottom: "{bottom}" top: "c{number}" {convolution} }}\n'
        net += f'layer {{ name: "t{number}" type: "TanH" bottom: "c{number}" top: "t{number}" }}\n'
        bottom = f"t{number}"
    net += f'layer {{ name: "sum" type: "Reduction" bottom: "{bottom}" top: "sum" loss_weight: 0.01 }}\n'
    (folder / "net.prototxt").write_text(net)
    return folder


def _files(folder: Path) -> dict[Path, int]:
    """When each file was changed, except what liblmdb writes for readers."""
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and p.name != "lock.mdb"}


def observed(run: Run, folder: Path, words: str) -> tuple[Any, ...]:
    """What a user may see of a run: exit code, output and log without times, files and the weights in them."""
    before = _files(folder)
    sys.modules.pop("mine", None)
    result = run(words)
    written = {path for path, changed in _files(folder).items() if before.get(path) != changed}
    names = sorted(re.sub(r"log\.INFO.*", "log", path.name) for path in written)
    weights = [path.read_bytes() for path in sorted(written) if path.suffix == ".caffemodel"]
    pattern = r"[\d.e+-]+" if words.startswith("time") else r"\(.* iter/s, .*\)"
    said = (message for message in result.messages if not re.search("took|Waiting for data|queue|Opened", message))
    log = sorted(re.sub(pattern, "", message) for message in said)  # threads that read speak in any order
    others = [line for line in result.err.splitlines() if not re.match(r"[IWEF]\d{4} ", line)]
    for path in written:
        path.unlink()
    return result.code, re.sub(r"[\d.]+", "", result.out), log, others, names, weights


@pytest.fixture(scope="module")
def baselines() -> dict[tuple[str, str], tuple[Any, ...]]:
    """What is observed without a flag, by words and text in the solver."""
    return {}


@pytest.mark.parametrize(("command", "flag"), PAIRS)
def test_alone(
    command: str,
    flag: str,
    run: Run,
    inputs: Path,
    started: Any,
    monkeypatch: pytest.MonkeyPatch,
    baselines: dict[tuple[str, str], tuple[Any, ...]],
) -> None:
    """The flag changes what the command does, or ends it, or a warning says that it has no effect."""
    monkeypatch.setenv("COLUMNS", "200")
    sample = SAMPLES[flag]
    solver = (inputs / "solver.prototxt").read_text()
    (inputs / "solver.prototxt").write_text(solver.replace("base_lr: 0.01", sample.solver or "base_lr: 0.01"))
    if command == "test":
        assert run("train --solver solver.prototxt").code == 0
        (inputs / "small_iter_8.caffemodel").rename(inputs / "start.caffemodel")
    baseline = f"{BASELINES[command]} {sample.beside}"
    if (baseline, sample.solver) not in baselines:
        baselines[baseline, sample.solver] = observed(run, inputs, baseline)
    without, beside = baselines[baseline, sample.solver], observed(run, inputs, f"{baseline} {sample.words}")
    assert without != beside
    if flag in OF_SEVERAL:
        idle = f"{sample.words.split()[0]}: no effect with one worker"
        said = [line for line in beside[2] if line not in (idle, "1 warning of this log:")]
        assert said == without[2] and without[4:] == beside[4:]


def test_what_is_observed_is_the_same_without_another_flag(run: Run, inputs: Path) -> None:
    for command in ("train", "time", "device_query"):
        first, second = (observed(run, inputs, BASELINES[command]) for _ in range(2))
        assert first == second


@pytest.mark.parametrize("words", NONSENSE)
def test_nonsense_for_several_workers_is_refused_with_one(words: str, run: Run, inputs: Path) -> None:
    assert run(f"train --solver solver.prototxt {words}").code in (1, 134)


def values(command: str, words: list[str]) -> dict[str, Any]:
    """The values that a command takes from these words, and from some word for each argument that it needs."""
    loaded = _load(command)
    needed = [param for param in loaded.params if isinstance(param, click.Argument) and param.required]
    given = [next(iter(getattr(param.type, "choices", ["word"]))) for param in needed]
    return loaded.make_context(command, [*words, *given], resilient_parsing=False).params


WAYS = ["--workers=2", "--hosts=a,b", "--hostfile=hosts", "--restarts=1", "--hosts=a,b --elastic=1:2"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("flag", [flag for command, flag in PAIRS if command == "train"])
def test_ranks_are_given_each_flag(way: str, flag: str, run: Run, inputs: Path, started: Any) -> None:
    """Of a flag, the launcher reads the value, or the ranks get it, or a line names it, or the start is refused."""
    usual = ["--solver=solver.prototxt", *way.split()]
    words = [*usual, *SAMPLES[flag].words.split()]
    assert run("train", *usual).code == 7
    plain = started.pop()[0]
    result = run("train", *words)
    if result.code in (0, 1, 134):
        named = re.sub("[ =].*", "", SAMPLES[flag].words)
        assert named in result.err or flag in ("solver", "version"), result
        return
    ((plan, order),) = started
    assert result.code == 7 and order["command"] == "train"
    wanted = values("train", words)
    assert order["params"] == wanted
    assert list(order["imports"]) == (["mine"] if flag == "imports" else [])
    assert order["traceback"] is (flag == "traceback")
    assert pb.SolverParameter.FromString(base64.b64decode(order["solver"])) == read_solver("solver.prototxt")
    assert plan.restarts == wanted["restarts"] and plan.timeout == wanted["timeout"]
    assert plan.workers == wanted["workers"] or not wanted["workers"]
    assert bool(plan.hosts) is bool(wanted["hosts"] or wanted["hostfile"])
    given_by_way = {word[2:].partition("=")[0] for word in way.split()}
    if flag in (OF_THE_LAUNCHER | {"timeout"}) - given_by_way:
        assert shape(plan) != shape(plain), "the launcher reads it"
    if flag in OF_SEVERAL:
        assert ("no effect with one worker" in result.err) is (plan.workers == 1)


def shape(plan: Plan) -> tuple[Any, ...]:
    """What a plan says, with the limits of an elastic job."""
    elastic = plan.elastic and (plan.elastic.least, plan.elastic.most, plan.elastic.rejoin, tuple(plan.elastic.hosts()))
    return plan.workers, tuple(plan.hosts), plan.timeout, plan.restarts, plan.shell, elastic


class ReachedError(Exception):
    """A rank reads the solver: it has accepted its flags."""


@pytest.mark.parametrize("flag", [flag for command, flag in PAIRS if command == "train"])
def test_under_mpiexec(flag: str, run: Run, inputs: Path, monkeypatch: pytest.MonkeyPatch, started: Any) -> None:
    """Ranks that another launcher has started accept each flag, but for those of fcaffe's launcher."""

    def read_solver(*_: Any) -> Any:
        raise ReachedError

    monkeypatch.setattr(TRAIN, "join", lambda _: World(size=2))
    monkeypatch.setattr(TRAIN, "_solver_param", read_solver)
    monkeypatch.setattr(World, "__exit__", lambda *_: None)
    result = run("train", "--solver=solver.prototxt", *SAMPLES[flag].words.split())
    own = flag in OF_THE_LAUNCHER
    early = flag in ("sigint_effect", "sighup_effect", "version", "minloglevel")
    if not early:
        assert ("another launcher has started these 2 ranks" in result.err) is own, result
        assert ("ReachedError" in result.err) is not own


@pytest.mark.parametrize("words", ["--hosts a:1,b:1", "--hostfile hosts"])
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

    for words in ([*command, "--workers", "2"], [MPIEXEC, "-n", "2", *command]):
        code, err = log_of(*words)
        assert code == 0 and "Reproducible: each batch is computed as 2 shards" in err, err
    code, err = log_of(MPIEXEC, "-n", "2", *command, "--restarts", "1")
    assert code != 0 and "another launcher has started these 2 ranks" in err
