"""Runs whose standard streams cannot be written: a full disk, a closed terminal, a reader that has gone, `2>&-`."""

from __future__ import annotations

import errno
import os
import pty
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fcaffe import log
from fcaffe.log.lines import Outlet
from fcaffe.model_files import write_model
from fcaffe.net import Net
from fcaffe.net.weights import to_model
from tests.cli.conftest import SOLVER, write_records
from tests.parallel.conftest import needs_mpi

TRAIN = "train -solver solver.prototxt"
SNAPSHOTS = [f"small_iter_{iteration}.{kind}" for iteration in (4, 8) for kind in ("caffemodel", "solverstate")]

# Each case is a process of its own, which ends as a process does; but what most commands import is imported once.
FORKED = """
import os, sys
import fcaffe.cli
import fcaffe.cli.convert, fcaffe.cli.lmdb, fcaffe.cli.run_net, fcaffe.cli.summary, fcaffe.cli.train
for number, line in enumerate(sys.argv[1:]):
    words = line.split()
    if os.fork():
        with open(f"code{number}", "w") as file:
            file.write(str(os.waitstatus_to_exitcode(os.wait()[1])))
        continue
    os.dup2(os.open(f"err{number}", os.O_WRONLY | os.O_CREAT), 2)
    while words and words[-1][0] in "<>2|":
        redirection = words.pop()
        stream, _, target = redirection.rpartition(">")
        if redirection == "|":
            read, write = os.pipe()
            os.close(read)
            os.dup2(write, 1)
        elif redirection.endswith("&-"):
            os.close({"<&-": 0, ">&-": 1, "2>&-": 2}[redirection])
        else:
            os.dup2(os.open(target, os.O_WRONLY), int(stream or 1))
    sys.exit(fcaffe.cli.main(words))
"""


def forked(folder: Path, *lines: str) -> list[tuple[int, str]]:
    """Exit code and standard error of `fcaffe LINE` for each line, one after the other."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment["PYTHONPATH"] = os.pathsep.join(["", str(folder), os.environ.get("PYTHONPATH", "")])
    (folder / "forked.py").write_text(FORKED)
    subprocess.run([sys.executable, "forked.py", *lines], cwd=folder, env=environment, check=True)
    return [(int(Path(f"code{number}").read_text()), Path(f"err{number}").read_text()) for number in range(len(lines))]


TALK = """
import fcaffe
class Talk(fcaffe.Layer):
    def setup(self, bottom, top): pass
    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top):
        print("x" * 10000)
        top[0].data[...] = bottom[0].data
    def backward(self, top, propagate_down, bottom): pass
"""


def test_a_training_outlives_its_streams(folder: Path) -> None:
    Path("talk.py").write_text(TALK)
    with open("net.prototxt", "a") as net:
        net.write('layer { name: "talk" type: "Python" bottom: "ip" top: "talk" ')
        net.write('python_param { module: "talk" layer: "Talk" } }')
    streams = {"usual": ">/dev/null", "full": ">/dev/full 2>/dev/full", "closed": "<&- >&- 2>&-"}
    for prefix in streams:
        Path(f"{prefix}.prototxt").write_text(SOLVER.replace('"small"', f'"{prefix}"'))
    results = forked(folder, *(f"train -solver {prefix}.prototxt {words}" for prefix, words in streams.items()))
    assert [code for code, _ in results] == [0, 0, 0]
    assert [bool(said) for _, said in results] == [True, False, False]
    models = [[Path(f"{prefix}_iter_{i}.caffemodel").read_bytes() for i in (4, 8)] for prefix in streams]
    assert models[0] == models[1] == models[2], "nothing was printed into a file that got a closed number"
    write_records("again", [0, 1, 2] * 4)
    assert Path("lmdb/data.mdb").read_bytes() == Path("again/data.mdb").read_bytes()


def start(folder: Path, line: str) -> subprocess.Popen[bytes]:
    command = ["bash", "-c", line.replace("fcaffe", f"{sys.executable} -m fcaffe", 1)]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The exit code of a process, and what it said on standard error."""
    said = process.communicate(timeout=300)[1]
    return process.returncode, said.decode()


@needs_mpi
def test_workers_outlive_the_launchers_streams(folder: Path) -> None:
    processes = [start(folder, f"fcaffe {TRAIN} --workers 2 2>/dev/full >&-")]
    processes += [start(folder, "fcaffe bench reduce --workers 2 --bytes 4000 >/dev/full")]
    codes = [ended(process)[0] for process in processes]
    assert codes == [0, 134], "a bench is there for what it prints"
    assert all(Path(name).exists() for name in SNAPSHOTS)


def test_a_training_outlives_its_terminal(folder: Path) -> None:
    """The bar and the log go to a terminal that is closed in the middle."""
    solver = Path("solver.prototxt")
    solver.write_text(solver.read_text().replace("max_iter: 8", "max_iter: 100"))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-m", "fcaffe", *TRAIN.split()],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        while b"Iteration 4 (" not in shown:
            shown += os.read(ours, 65536)
        os.close(ours)
        assert process.wait(300) == 0
    assert Path("small_iter_100.solverstate").exists()


OUTPUTS = [
    ("summary net.prototxt >/dev/full", 134, "standard output: No space left on device; send it"),
    ("summary net.prototxt >&-", 134, "standard output: Bad file descriptor; send it"),
    ("solver solver.prototxt --json >/dev/full", 134, "standard output: No space left"),
    ("lmdb info lmdb >/dev/full", 134, "standard output: No space left"),
    ("convert net.prototxt new.prototxt >/dev/full", 134, "standard output: No space left"),
    ("train --help >/dev/full", 134, "standard output: No space left"),
    ("--version >/dev/full", 134, "standard output: No space left"),
    (">&-", 134, "standard output: Bad file descriptor"),
    ("summary net.prototxt |", 141, ""),
    ("device_query 2>/dev/full", 1, ""),
    ("time -model net.prototxt -iterations 1 >&- 2>/dev/full", 0, ""),
    ("test -model net.prototxt -iterations 1 -weights small.caffemodel >/dev/full 2>/dev/full", 0, ""),
    ("--nonsense 2>/dev/full", 1, ""),
]


def test_commands_that_print_fail_where_they_cannot(folder: Path, net_from: Callable[..., Net]) -> None:
    write_model("small.caffemodel", to_model(net_from(Path("net.prototxt").read_text())))
    results = forked(folder, *(line for line, _, _ in OUTPUTS))
    for (returned, said), (line, code, message) in zip(results, OUTPUTS, strict=True):
        assert returned == code, (line, said)
        assert message in said and said.count("\n") == bool(message), (line, said)
    process = start(folder, "fcaffe solver solver.prototxt <&- >&-")  # closed before Python starts
    code, said = ended(process)
    assert code == 134 and "standard output: Bad file descriptor" in said


def test_what_is_missing_is_told_and_no_line_is_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes fail at random bytes, for a random time; then each line is there, or counted in a line of its own."""
    path, chance, write = tmp_path / "log", random.Random(1), os.write
    room = [0]

    def filling_up(descriptor: int, content: bytes) -> int:
        room[0] += chance.choice([-10, 30])
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        cut = len(content) if room[0] >= len(content) else min(room[0], len(content) - 2)
        done = write(descriptor, content[:cut])
        room[0] -= done
        return done

    with open(path, "wb") as file, monkeypatch.context() as patch:
        patch.setattr(os, "write", filling_up)
        outlet = Outlet(file.fileno(), "log", notice=lambda lines, reason: f"missing {lines}: {reason}\n")
        for number in range(500):
            assert outlet.write(f"line {number}\n".encode()) > 0
        room[0] = 1000
        outlet.write(b"line 500\n")
        assert outlet.problem is None
    expected = 0
    whole = 0
    for line in path.read_text().splitlines():
        if line == f"line {expected}":
            expected, whole = expected + 1, whole + 1
        elif line.startswith("missing ") and line.endswith(": No space left on device"):
            expected += int(line.split()[1].rstrip(":"))
        else:
            notices = (f"missing {count}: No space left on device" for count in range(1, 500))
            assert any(text.startswith(line) and text != line for text in (f"line {expected}", *notices)), line
    assert expected == 501 and 50 < whole < 500


class Closed:
    """What `sys.stderr` may be in a script: a stream whose file has failed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def flush(self) -> None:
        raise ValueError("I/O operation on closed file.")


@pytest.mark.parametrize("stream", [None, Closed()])
def test_scripts_outlive_it_too(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    log.info("nobody reads this")
