from __future__ import annotations

import importlib
import io
import re
import signal
import struct
import sys
from pathlib import Path

import pytest

import fcaffe
from fcaffe.solvers import Solver
from tests.cli.conftest import Run
from tests.test_output_files import leftover

pytestmark = pytest.mark.usefixtures("folder")


def append(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def test_a_training_from_start_to_end(run: Run) -> None:
    result = run("train -solver solver.prototxt")
    assert result.code == 0 and result.out == ""
    messages = result.messages
    assert messages[0] == "Use CPU."
    assert re.match(r"(oneDNN 3\S+|NumPy) engine, ", messages[1])
    assert messages[2].startswith("Noise in the net (Dropout, stochastic pooling) comes from the counter-based stream")
    assert 'train_state {\n  level: 0\n  stage: ""\n}' in result.err
    order = ["Solver scaffolding done.", "Starting Optimization", "Solving small", "Learning Rate Policy: step"]
    assert messages[messages.index(order[0]) :][:4] == order
    memory, first = (
        next(i for i, line in enumerate(messages) if line.startswith(of)) for of in ("Memory for t", "Iteration 0 (")
    )
    assert memory < first and messages[first].startswith("Iteration 0 (0 iter/s, ")
    assert messages[-3] == messages[-1] == "Optimization Done." and messages[-2].startswith("Training took ")
    assert Path("small_iter_8.solverstate").exists()


@pytest.mark.parametrize(
    ("package", "line", "flags"),
    [
        ("h5py", "snapshot_format: HDF5", []),
        ("h5py", "snapshot_format: HDF5 snapshot: 0", []),  # a snapshot at the end alone
        ("tensorboardX", "", ["--tensorboard", "events"]),
    ],
)
def test_a_package_that_the_end_needs_is_looked_for_before(
    package: str, line: str, flags: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    solver = Path("solver.prototxt").read_text().replace("snapshot: 4" if "snapshot:" in line else "\0", "")
    Path("solver.prototxt").write_text(solver + line)
    done = run("train", "--solver", "solver.prototxt", *flags)
    assert f"pip install {package}" in done.fatal
    assert "Starting Optimization" not in done.err and not list(Path().glob("small_iter_*"))


def test_the_log_says_which_stream_noise_comes_from(run: Run) -> None:
    assert any("Caffe's stream" in line for line in run("train -solver solver.prototxt -rng caffe").messages)


def test_level_and_stages_reach_the_training_net_only(run: Run) -> None:
    result = run("-stage=a,b train --level 2 -solver solver.prototxt")
    assert result.err.count('level: 2\n  stage: "a"\n  stage: "b"\n') == 2  # the solver and the training net


def test_default_snapshot_prefix_is_the_solver(run: Run) -> None:
    text = Path("solver.prototxt").read_text()
    Path("plain.prototxt").write_text(text.replace('snapshot_prefix: "small"', ""))
    Path("into.prototxt").write_text(text.replace('"small"', '"states"'))
    Path("states").mkdir()
    assert run("train -solver plain.prototxt").code == run("train -solver into.prototxt").code == 0
    assert Path("plain_iter_8.caffemodel").exists() and Path("states/into_iter_8.caffemodel").exists()


def test_snapshot_auto(run: Run) -> None:
    first = run("train -solver solver.prototxt -snapshot auto")
    assert first.code == 0 and any(line.startswith("No whole snapshot small_iter_*") for line in first.messages)
    state = Path("small_iter_8.solverstate")
    state.write_bytes(state.read_bytes()[:50])
    again = run("train -solver solver.prototxt -snapshot auto")
    assert any(line.startswith("Passing over small_iter_8.solverstate") for line in again.messages)
    assert "Resuming from small_iter_4.solverstate" in again.messages
    assert "small" in str(state) and again.code == 0


def test_weights_go_in_order_into_all_nets(run: Run) -> None:
    run("train -solver solver.prototxt")
    for name in ("a", "b"):
        Path("small_iter_8.caffemodel").rename(f"{name}.caffemodel")
        run("train -solver solver.prototxt")
    append("solver.prototxt", 'weights: "other.caffemodel"')
    result = run("train -solver solver.prototxt -weights a.caffemodel,b.caffemodel")
    assert result.code == 0
    lines = [line for line in result.messages if line.startswith("Finetuning")]
    assert lines == ["Finetuning from a.caffemodel", "Finetuning from b.caffemodel"] * 2
    assert run("train -solver solver.prototxt").fatal.startswith("other.caffemodel does not exist")
    assert run("train -solver solver.prototxt -snapshot small_iter_4.solverstate").code == 0, (
        "a snapshot overrides them"
    )


def test_snapshot_or_weights(run: Run) -> None:
    fatal = run("train -solver solver.prototxt -snapshot a -weights b").fatal
    assert fatal == "Give a snapshot to resume training or weights to finetune but not both."


@pytest.mark.parametrize(
    ("number", "effect", "code", "iterations"),
    [
        ("SIGINT", "", 0, [3]),
        ("SIGINT", "-sigint_effect none", 0, [4, 8]),
        ("SIGINT", "-sigint_effect snapshot", 0, [3, 4, 8]),
        ("SIGHUP", "", 0, [3, 4, 8]),
        ("SIGHUP", "-sighup_effect=stop", 0, [3]),
        ("SIGTERM", "", 143, [3]),
    ],
)
def test_signals(
    run: Run, monkeypatch: pytest.MonkeyPatch, number: str, effect: str, code: int, iterations: list[int]
) -> None:
    update = Solver.apply_update

    def update_with_signal(solver: Solver) -> None:
        update(solver)
        if solver.iteration == 2:
            signal.raise_signal(signal.Signals[number])

    monkeypatch.setattr(Solver, "apply_update", update_with_signal)
    before = signal.getsignal(signal.Signals[number])
    result = run(f"train -solver solver.prototxt {effect}")
    assert result.code == code
    assert sorted(int(path.stem[len("small_iter_") :]) for path in Path().glob("*.solverstate")) == iterations
    assert result.messages[-3] == ("Optimization stopped early." if 8 not in iterations else "Optimization Done.")
    assert signal.getsignal(signal.Signals[number]) == before


def test_sigterm_snapshots_whatever_the_solver_says(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    append("solver.prototxt", "snapshot_after_train: false")
    update = Solver.apply_update

    def update_with_signal(solver: Solver) -> None:
        update(solver)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Solver, "apply_update", update_with_signal)
    assert run("train -solver solver.prototxt").code == 143
    assert Path("small_iter_1.solverstate").exists()


def test_interrupted_while_it_builds_the_net(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("fcaffe.cli.train"), "Solver", interrupt)
    result = run("train -solver solver.prototxt")
    assert result.code == 130 and "Traceback" not in result.err and not result.messages[-1].startswith("F")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert run("train -solver solver.prototxt").code == 0
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "8/8" in shown and "loss " in shown and "lr 0.001" in shown
    assert "solver.cpp:332] Optimization Done.\n" in shown
    assert shown.count("Train net output #0") == 4, "log lines stay whole beside the bar"


def test_a_former_flag(run: Run) -> None:
    result = run("train -solver solver.prototxt --grow-batch 32")
    assert result.code == 1 and "unknown command line flag 'grow-batch' (it no longer exists: leave it" in result.err


def test_no_progress_bar_in_a_pipe(run: Run) -> None:
    result = run("train -solver solver.prototxt")
    assert "\x1b" not in result.err and "8/8" not in result.err


def test_a_training_removes_what_killed_ones_left(run: Run) -> None:
    left = [Path(leftover(f"{name}")) for name in ("small_iter_4.caffemodel", "small_iter_4.solverstate", "page.html")]
    for path in left:
        path.write_text("half")
    result = run("train -solver solver.prototxt -report page.html")
    assert result.code == 0 and not any(path.exists() for path in left)
    assert any(line.startswith("Removed unfinished files") and "page.html" in line for line in result.messages)


def test_training_again_in_the_same_folder(folder: Path, run: Run) -> None:
    """A finished training may be repeated, as users of Caffe do. One that can still go on is spared."""
    assert run("train --solver solver.prototxt").code == 0
    again = run("train --solver solver.prototxt")
    assert again.code == 0 and "--snapshot small_iter_8.solverstate goes on from the other run" in again.err
    text = (folder / "solver.prototxt").read_text()
    (folder / "solver.prototxt").write_text(text.replace("max_iter: 8", "max_iter: 12"))
    refused = run("train --solver solver.prototxt")
    assert (
        refused.code == 134
        and "small_iter_8.caffemodel and small_iter_8.solverstate are of another run" in refused.fatal
    )
    further = run("train --solver solver.prototxt --snapshot auto")
    assert further.code == 0 and "Resuming from small_iter_8.solverstate" in further.err
    assert "another run" not in further.err


# --- what a training writes besides, and weights from elsewhere ---


def test_one_worker_has_a_summary(run: Run) -> None:
    result = run("train", "--solver", "solver.prototxt")
    (line,) = [message for message in result.messages if message.startswith("Training took ")]
    whole = float(line.split()[2])
    parts = re.findall(r"(\d+\.\d\d) s \((\d+\.\d)%\)", line)
    assert sum(float(seconds) for seconds, _ in parts) == pytest.approx(whole, abs=0.01 * len(parts))
    assert sum(float(share) for _, share in parts) == pytest.approx(100, abs=0.6)


def test_all_curves_are_there_for_tensorboard(run: Run) -> None:
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2", reason="needs the extra fcaffe[tensorboard]")
    assert run("train -solver solver.prototxt -tensorboard events").code == 0
    (path,) = Path("events").iterdir()
    content, offset, found = path.read_bytes(), 0, {}
    while offset < len(content):
        (length,) = struct.unpack_from("<Q", content, offset)
        event = event_pb2.Event.FromString(content[offset + 12 : offset + 12 + length])
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(event.step)
        offset += length + 16
    assert found.pop("train/loss") == found.pop("train/lr") == list(range(1, 9))
    assert found and all(tag.startswith("test/") and steps == [0, 4, 8] for tag, steps in found.items())


TOLD = 'has weights for no layer of this net, whose first is "'


@pytest.mark.parametrize(
    "words",
    [
        "train --solver other_solver.prototxt --weights small_iter_8.caffemodel",
        "test --model other.prototxt --weights small_iter_8.caffemodel --iterations 1",
        "time --model other.prototxt --weights small_iter_8.caffemodel --iterations 1",
        "extract_features small_iter_8.caffemodel other.prototxt other features 1 lmdb",
        "predict --model other.prototxt --weights small_iter_8.caffemodel lmdb",
    ],
)
def test_weights_that_fit_no_layer(words: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """An error of each command, a warning in scripts."""
    assert run("train --solver solver.prototxt").code == 0
    for name, text in (("other.prototxt", "net.prototxt"), ("other_solver.prototxt", "solver.prototxt")):
        Path(name).write_text(
            Path(text).read_text().replace('"ip"', '"other"').replace("net.prototxt", "other.prototxt")
        )
    assert TOLD in run(words).fatal
    capsys.readouterr()
    fcaffe.Net("other.prototxt", fcaffe.TEST, weights="small_iter_8.caffemodel")
    assert TOLD in capsys.readouterr().err
