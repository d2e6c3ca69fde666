"""What Caffe's commands print, line by line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fcaffe.cli import main
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import write_binary
from fcaffe.proto.binary import read_binary
from tests.conftest import GOLDEN

LOGS = GOLDEN / "logs"
PREFIX = re.compile(r"^([IWEF])\d{4,8} \d\d:\d\d:\d\d\.\d{6} +\d+ ([\w.]+):\d+\] (.*)$")
NUMBER = re.compile(r"(?<![\w.])-?\d+\.?\d*(?:e[+-]?\d+)?(?![\w.]*\w)")
SPEED = re.compile(r"\([-\de.+]+ iter/s, [\de.]+s/(\d+) iters\)|[\de.-]+ ms\.|Initial loss: .*")  # of unseeded weights
ANYWHERE = ("Restarting data prefetching", "Datatype class")  # from reading threads, or once a file

Line = tuple[str, str, str]  # level, file of the source tag, text
Run = Callable[..., list[Line]]


def lines_of(text: str) -> list[Line]:
    """Caffe's lines: those without a prefix belong to the message above; those of fcaffe's own modules are left out."""
    lines: list[Line] = []
    own = False
    for line in text.splitlines():
        match = PREFIX.match(line)
        if match is None:
            if not own and not line.startswith("$"):
                lines.append(("", "", line.rstrip()))
            continue
        level, file, message = match.groups()
        own = file.endswith(".py")
        if not own and not message.startswith(ANYWHERE):
            lines.append((level, file, SPEED.sub("<time>", message).rstrip()))
    return lines


def assert_same(ours: list[Line], theirs: list[Line]) -> None:
    for mine, golden in zip(ours, theirs, strict=False):
        assert mine[:2] == golden[:2] and NUMBER.sub("#", mine[2]) == NUMBER.sub("#", golden[2]), (mine, golden)
        assert mine[0] or mine[2] == golden[2], "parameters are echoed letter by letter"
        pairs = zip(NUMBER.findall(mine[2]), NUMBER.findall(golden[2]), strict=True)
        for a, b in pairs:
            assert float(a) == pytest.approx(float(b), rel=1e-4, abs=1e-8), (mine, golden)
    assert len(ours) == len(theirs), (ours[len(theirs) :], theirs[len(ours) :])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command in a folder with the golden net, solvers and data; its lines."""
    for path in LOGS.glob("*.prototxt"):
        shutil.copy(path, tmp_path)
    shutil.copy(GOLDEN / "solvers" / "train.h5", tmp_path)
    shutil.copy(GOLDEN / "solvers" / "train_h5.txt", tmp_path)
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> list[Line]:
        capfd.readouterr()
        code = main(list(arguments))
        text = capfd.readouterr().err
        assert code == 0, text
        return lines_of(text)

    return command


def golden(name: str) -> list[Line]:
    return lines_of((LOGS / f"{name}.log").read_text())


@pytest.mark.parametrize("name", ["plain", "compute_loss", "debug_info", "two_test_nets", "silent"])
def test_training(name: str, run: Run) -> None:
    assert_same(run("train", f"--solver=solver_{name}.prototxt"), golden(f"train_{name}"))


def test_resuming_finetuning_scoring_and_timing(run: Run) -> None:
    run("train", "--solver=solver_plain.prototxt")
    state = read_binary("talk_iter_4.solverstate", pb.SolverState)
    state.ClearField("resume")  # as Caffe writes it, and so resumes at the first record
    write_binary("talk_iter_4.solverstate", state)
    resumed = run("train", "--solver=solver_plain.prototxt", "--snapshot=talk_iter_4.solverstate")
    weights = "--weights=talk_iter_8.caffemodel"
    scored = run("test", "--model=net.prototxt", weights, "--iterations=3")
    timed = run("time", "--model=net.prototxt", "--iterations=2")
    finetuned = run("train", "--solver=solver_compute_loss.prototxt", weights)
    assert_same(timed, golden("time"))
    assert_same(resumed, golden("train_resume"))
    assert_same(scored, golden("test"))
    assert_same(finetuned, golden("train_weights"))
